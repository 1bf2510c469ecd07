"""`citadel distill CONFIG --out DIR`: train a student of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.run_training import run_distill


def distill(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file; see configs/tiny-en.toml.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="The folder for checkpoints and logs.")],
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in DIR.")] = False,
    teacher: Annotated[str, typer.Option(metavar="DIR", help="The teacher; default: the config's.")] = "",
    device: Annotated[str, typer.Option(metavar="auto|cuda|cpu", help="Device; default: the config's.")] = "",
    steps: Annotated[int, typer.Option(min=0, help="Number of steps; 0: the config's limit.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of training; 0: the config's limit.")] = 0.0,
) -> None:
    """Train a smaller model in the vector space of its teacher."""
    run_distill(config, out, resume, teacher, device, steps, minutes)
