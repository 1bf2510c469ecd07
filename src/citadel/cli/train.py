"""`citadel train CONFIG --out DIR`: train a model."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.run_training import run_train


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file; see configs/.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="The folder for checkpoints and logs.")],
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in DIR.")] = False,
    device: Annotated[str, typer.Option(metavar="auto|cuda|cpu", help="Device; default: the config's.")] = "",
    steps: Annotated[int, typer.Option(min=0, help="Number of steps; 0: the config's.")] = 0,
) -> None:
    """Train the model that a config describes."""
    run_train(config, out, resume, device, steps)
