"""CRC-32C of the native engine, and the block size of section checksums."""

from __future__ import annotations

from citadel._native import crc32c as crc32c
from citadel._native import crc32c_blocks as crc32c_blocks

BLOCK = 1 << 20  # bytes per section checksum
