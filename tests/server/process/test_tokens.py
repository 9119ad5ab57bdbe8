"""The token file: what it may contain, and that changes are noticed."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

import pytest

from lumigrad.server.core.config import ConfigError
from lumigrad.server.rpc.authentication import Tokens

ALICE, BOB, CAROL = (f"{name}-0123456789abcdef" for name in ("alice", "bob", "carol"))


def tokens_of(folder: Path, text: str) -> Tokens:
    file = folder / "tokens"
    file.write_text(text)
    return Tokens(str(file))


def replace(file: Path, text: str) -> None:
    """Replaces a file as editors and Kubernetes do: another file takes its name."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, file)


def test_tokens_stand_in_the_file_or_only_their_digests(tmp_path: Path) -> None:
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    tokens = tokens_of(tmp_path, f"# people\n\nalice: {ALICE}\n bob : sha256:{digest}\nalice: {CAROL}\n")
    assert [tokens.tenant_of(token) for token in (ALICE, BOB, CAROL)] == ["alice", "bob", "alice"]
    assert [tokens.tenant_of(token) for token in ("", "alice", digest, f"sha256:{digest}", ALICE + "x")] == [None] * 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no token, so all calls would be refused"),
        ("# nothing\n", "has no token"),
        (f"{ALICE}\n", 'line 1 of .*: expected "tenant: token"'),
        ("alice: short\n", "line 1 of .*: expected"),
        ("alice: sha256:0123456789abcdef\n", "line 1 of .*: expected"),
        (f"\nal/ice: {ALICE}\n", "line 2 of .*: expected a tenant's name"),
        (f"alice: {ALICE} {BOB}\n", "line 1 of .*: expected"),
        (f"alice: {ALICE}\nbob: {ALICE}\n", "line 2 of .*: another tenant above has the same token"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_showing_what_it_holds(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--tokens-file: .*{complaint}") as error:
        tokens_of(tmp_path, text)
    assert ALICE not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--tokens-file: cannot read .*absent: No such file or directory"):
        Tokens(str(tmp_path / "absent"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not text"):
        Tokens(str(tmp_path / "binary"))


def test_a_change_is_noticed_at_the_next_call(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, f"alice: {ALICE}\n")
    replace(tmp_path / "tokens", f"bob: {BOB}\n")
    assert [tokens.tenant_of(token) for token in (ALICE, BOB)] == [None, "bob"]


@pytest.mark.parametrize("text", ["", f"bob: {BOB}\nnonsense\n", None])
def test_a_change_for_the_worse_changes_nothing(tmp_path: Path, text: str | None) -> None:
    tokens = tokens_of(tmp_path, f"alice: {ALICE}\n")
    file = tmp_path / "tokens"
    file.unlink() if text is None else replace(file, text)
    assert [tokens.tenant_of(token) for token in (ALICE, BOB)] == ["alice", None]
    replace(file, f"bob: {BOB}\n")
    assert [tokens.tenant_of(token) for token in (ALICE, BOB)] == [None, "bob"]


def test_every_token_is_compared_in_constant_time_whichever_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_of(tmp_path, f"alice: {ALICE}\nbob: {BOB}\ncarol: {CAROL}\n")
    compared: list[str] = []
    original = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda ours, theirs: compared.append(ours) or original(ours, theirs))
    for token in (ALICE, CAROL, "wrong"):
        compared.clear()
        tokens.tenant_of(token)
        assert len(compared) == 3
