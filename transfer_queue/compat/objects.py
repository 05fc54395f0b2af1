"""Python values beyond what `transfer_queue.codec.objects` takes: each type that is known here travels as plain data with its name, and comes back as
itself. No pickle: what is not known is refused by column, row and type.

A value that needs it travels as the pair (MARK, node). In a node, what is converted is a tuple (MARK, name of the type, plain data), and nothing else
is a tuple that begins with MARK. All other values travel untouched and are not looked at again when they are read.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transfer_queue.codec import Packed
from transfer_queue.codec.objects import pack_objects

MARK = "transfer_queue.compat"
_INT64 = range(-(1 << 63), 1 << 64)  # what MessagePack can say


def pack_values(name: str, values: Sequence[Any]) -> Packed:
    """Rows of kind object. Raises TypeError or ValueError naming column and row for what would not come back as it is."""
    if not any(_marked(value) for value in values):
        try:
            return pack_objects(name, values)
        except (TypeError, ValueError):
            pass
    return pack_objects(name, [(MARK, _plain(value)) for value in values])


def unpacked_value(value: Any) -> Any:
    """What one row of kind object was, as `pack_values` got it."""
    return _restored(value[1]) if _marked(value) else value


def _marked(value: Any) -> bool:
    return type(value) is tuple and len(value) > 0 and type(value[0]) is str and value[0] == MARK


def _plain(value: Any) -> Any:
    """`value` as a node. What no converter takes stays, so that the codec names it."""
    kind = type(value)
    if kind is list:
        return [_plain(item) for item in value]
    if kind is dict:
        return {key: _plain(item) for key, item in value.items()} if all(_is_plain_key(key) for key in value) else _tagged("dict", _pairs(value))
    if kind is tuple:
        return _tagged("tuple", [_plain(item) for item in value])
    if kind is int and value not in _INT64:
        return _tagged("int", str(value))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _PLAIN:
        return _tagged(name, _PLAIN[name](value))
    if kind is np.ndarray and value.dtype.kind in "OUS":
        return _tagged("numpy.ndarray", [value.dtype.str, list(value.shape), [_plain(item) for item in value.reshape(-1).tolist()]])
    if "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image):
        return _tagged("PIL.Image.Image", _image(value))
    return value


def _tagged(name: str, data: Any) -> tuple[str, str, Any]:
    return MARK, name, data


def _is_plain_key(key: Any) -> bool:
    return type(key) in (str, int, bool, float, bytes, type(None)) and (type(key) is not int or key in _INT64)


def _pairs(value: Any) -> list[list[Any]]:
    return [[_plain(key), _plain(item)] for key, item in value.items()]


def _sorted(value: Any) -> list[Any]:
    """A set, in an order that a second writer gives too."""
    return [_plain(item) for item in sorted(value, key=repr)]


def _image(image: Any) -> list[Any]:
    palette = image.getpalette("RGB") if image.mode == "P" else None
    return [image.mode, list(image.size), image.tobytes(), palette]


def _configured(value: Any) -> Any:
    """A DictConfig or ListConfig with its interpolations as they stand."""
    from omegaconf import OmegaConf

    return _plain(OmegaConf.to_container(value, resolve=False))


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "numpy.str_": str,
    "numpy.bytes_": bytes,
    "builtins.bytearray": bytes,
    "builtins.complex": lambda value: [value.real, value.imag],
    "builtins.set": _sorted,
    "builtins.frozenset": _sorted,
    "builtins.range": lambda value: [value.start, value.stop, value.step],
    "collections.OrderedDict": _pairs,
    "collections.defaultdict": _pairs,
    "collections.deque": lambda value: [value.maxlen, [_plain(item) for item in value]],
    "torch.Size": list,
    "transformers.feature_extraction_utils.BatchFeature": lambda value: _plain(dict(value.data)),
    "transformers.tokenization_utils_base.BatchEncoding": lambda value: _plain(dict(value.data)),
    "omegaconf.dictconfig.DictConfig": _configured,
    "omegaconf.listconfig.ListConfig": _configured,
}


def _restored(node: Any) -> Any:
    kind = type(node)
    if kind is list:
        return [_restored(item) for item in node]
    if kind is dict:
        return {key: _restored(item) for key, item in node.items()}
    if not _marked(node):
        return node
    _, name, data = node
    return _RESTORED[name](data)


def _listed(data: list[Any]) -> list[Any]:
    return [_restored(item) for item in data]


def _dict_of(data: list[list[Any]]) -> dict[Any, Any]:
    return {_restored(key): _restored(item) for key, item in data}


def _array_of(data: list[Any]) -> np.ndarray:
    dtype, shape, items = data
    flat = np.empty(len(items), dtype=dtype)
    for at, item in enumerate(_listed(items)):  # one by one: numpy would take lists for further axes
        flat[at] = item
    return flat.reshape(shape)


def _image_of(data: list[Any]) -> Any:
    from PIL import Image

    mode, size, pixels, palette = data
    image = Image.frombytes(mode, tuple(size), pixels)
    if palette is not None:
        image.putpalette(palette, "RGB")
    return image


def _size_of(data: list[int]) -> Any:
    import torch

    return torch.Size(data)


def _config_of(data: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.create(_restored(data))


def _features_of(data: Any) -> Any:
    from transformers import BatchFeature

    return BatchFeature(_restored(data))


def _encoding_of(data: Any) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding(_restored(data))


_RESTORED: dict[str, Callable[[Any], Any]] = {
    "dict": _dict_of,
    "tuple": lambda data: tuple(_listed(data)),
    "int": int,
    "numpy.str_": np.str_,
    "numpy.bytes_": np.bytes_,
    "numpy.ndarray": _array_of,
    "builtins.bytearray": bytearray,
    "builtins.complex": lambda data: complex(*data),
    "builtins.set": lambda data: set(_listed(data)),
    "builtins.frozenset": lambda data: frozenset(_listed(data)),
    "builtins.range": lambda data: range(*data),
    "collections.OrderedDict": lambda data: OrderedDict(_dict_of(data)),
    "collections.defaultdict": _dict_of,  # its factory is code, which does not travel: a dict, as the docs say
    "collections.deque": lambda data: deque(_listed(data[1]), maxlen=data[0]),
    "torch.Size": _size_of,
    "transformers.feature_extraction_utils.BatchFeature": _features_of,
    "transformers.tokenization_utils_base.BatchEncoding": _encoding_of,
    "omegaconf.dictconfig.DictConfig": _config_of,
    "omegaconf.listconfig.ListConfig": _config_of,
    "PIL.Image.Image": _image_of,
}
