"""One loaded model per process: indexes of the same model share its weights."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from citadel.encode.locate import fingerprint

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder

_loaded: weakref.WeakValueDictionary[tuple[str, float, int | None], Encoder] = weakref.WeakValueDictionary()
_loading = threading.Lock()  # only taken inside `no_fork`


def shared_encoder(folder: str, tau: float, threads: int | None) -> Encoder:
    """Load a model, or return the one in use with the same files, τ and threads."""
    from citadel.encode.encoder import Encoder  # late, because it needs onnxruntime

    key = (fingerprint(folder), tau, threads)
    with _loading:
        encoder = _loaded.get(key)
        if encoder is None:
            encoder = Encoder(folder, threads, tau=tau)
            _loaded[encoder.fingerprint, tau, threads] = encoder
    return encoder
