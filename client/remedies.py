"""What somebody can do about an error, in the words of Python and in those of the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remedy:
    """One piece of advice. As text it is for Python; the command line shows its own words instead.

    Attributes:
        python: names arguments.
        shell: names options.
    """

    python: str
    shell: str

    def __str__(self) -> str:
        return self.python


LARGER_TIMEOUT = Remedy("pass a larger timeout_s", "give it longer with --timeout SECONDS")
TOKEN = Remedy(
    "pass token=… to Client, or set LUMIGRAD_TOKEN", "set LUMIGRAD_TOKEN, or name its file with --token-file FILE"
)
PLAIN_TEXT = Remedy("leave tls out", "leave --tls out, or say --no-tls")
AUTHORITY = Remedy(
    "pass tls=FILE with the authority's certificate", "name the file of the authority's certificate with --tls-ca FILE"
)
TLS = Remedy("pass tls=True or tls=FILE", "use --tls or --tls-ca FILE")
CERTIFICATE = Remedy("certificate=(FILE, KEY)", "--certificate FILE KEY")
TLS_TOO = Remedy("expected tls=True or tls=FILE with it, got tls=False", "expected --tls or --tls-ca FILE with it")
TARGET = Remedy("name another with LUMIGRAD_TARGET", "name another with --target or LUMIGRAD_TARGET")
TARGETS = Remedy("name others with LUMIGRAD_TARGET", "name others with --target or LUMIGRAD_TARGET")

_ALL = (LARGER_TIMEOUT, TOKEN, PLAIN_TEXT, AUTHORITY, TLS, CERTIFICATE, TLS_TOO, TARGET, TARGETS)


def at_the_shell(text: str) -> str:
    """A message with the advice in the words of the command line."""
    for remedy in _ALL:
        text = text.replace(remedy.python, remedy.shell)
    return text
