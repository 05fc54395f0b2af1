"""A tokenizer of a few dozen whole-character tokens, saved as ordinary Hugging Face files, so that transformers and vLLM load it like any other."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL = (PAD, BOS, EOS, UNKNOWN)


def char_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token a character of `alphabet` (ids from 4 on); 0 pad, 1 bos, 2 eos, 3 unknown. Encoding puts bos in front, as a causal model's prompt."""
    if len(set(alphabet)) != len(alphabet):
        raise ValueError(f"alphabet {alphabet!r} names a character twice: its ids would not be dense; name each character once")
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
