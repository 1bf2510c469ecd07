"""`citadel train CONFIG --out DIR`: from pairs to a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.run_training import run_train


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file; see configs/.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="The folder for checkpoints and logs.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in DIR.")] = False,
    device: Annotated[str, typer.Option(metavar="auto|cuda|cpu", help="Where to run; else as the config says.")] = "",
    steps: Annotated[int, typer.Option(min=0, help="Another number of steps than the config's.")] = 0,
) -> None:
    """Train a model as a config says."""
    run_train(config, out, resume, device, steps)
