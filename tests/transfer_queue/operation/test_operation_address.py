"""Where the endpoint of the metrics listens, as people write it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue.operation.address import metrics_bind, metrics_url, split_bind

HOSTS = st.ip_addresses().map(str) | st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)


@given(HOSTS, st.integers(0, 65535))
def test_host_and_port_come_back_as_they_were_written(host: str, port: int) -> None:
    url = metrics_url(host, port)
    bind = url.removeprefix("http://").removesuffix("/metrics")
    assert split_bind(bind) == metrics_bind(bind) == (host, port)


@pytest.mark.parametrize("text", ["9400", ":9400", "127.0.0.1:9400"])
def test_without_a_host_it_is_loopback(text: str) -> None:
    assert metrics_bind(text) == ("127.0.0.1", 9400)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        *[(text, "host and port") for text in ("", ":", "here")],
        *[(f"h:{port}", f"'{port}' is no port") for port in ("", "-1", "65536", "http", "²")],
        ("65536", "'65536' is no port"),
    ],
)
def test_what_is_no_address_is_told_with_value_rule_and_fix(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"metrics={text!r}: ") + f".*{rule}.*nothing listens. Write PORT, or HOST:PORT"):
        metrics_bind(text)


@given(st.text(max_size=20))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        host, port = metrics_bind(text)
    except ValueError:
        return
    assert host
    assert 0 <= port < 1 << 16
