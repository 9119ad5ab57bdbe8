"""Where a fit stands, in a file, so that another process can go on with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.evaluation import Scores
from lumigrad.client.fitting.recipe import Recipe


@dataclass(frozen=True)
class Checkpoint:
    """What `Client.resume_trainer` needs, and how the fit was asked for.

    Attributes:
        training_id: of the training on the worker.
        lease: lets whoever has it take the training up: the file is for its owner's eyes.
        size: most pixels along a side of a photograph.
        hold_out: every so-manieth photograph is kept aside.
        recipe: how the fit is made.
        before: how the scene scored that it began with.
    """

    training_id: str
    lease: str
    size: int
    hold_out: int
    recipe: Recipe
    before: Scores

    def write(self, path: Path) -> None:
        """Replaces the file, whole or not at all."""
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(asdict(self), indent=2))
        new.replace(path)

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """The checkpoint of a fit that was stopped.

        Raises:
            InvalidArgument: there is none, or it is not one.
        """
        try:
            values = json.loads(path.read_text())
            parts = {"recipe": Recipe(**values["recipe"]), "before": Scores(**values["before"])}
            return Checkpoint(**{**values, **parts})
        except FileNotFoundError:
            raise InvalidArgument.of(
                "resume", f"expected {path} of a fit that was stopped, got no such file; leave --resume out"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument.of("resume", f"{path} is not a checkpoint of `lumigrad fit`: {error}") from error
