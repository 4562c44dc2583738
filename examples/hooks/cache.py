"""A program with a cache that it can do without.

    python3 cache.py 200      as the first process of a container

Its pod says  vscaled.io/before-shrink: 'signal: SIGUSR1'. Python frees what nobody refers to at once, but the C library keeps
much of it: malloc_trim gives it back. Whenever the file /app/grow is there, it caches so many MiB anew and removes the file.
"""

import ctypes
import gc
import os
import signal
import sys
import time

mebibytes = int(sys.argv[1])
cache = []
size = 4000


def fill():
    # Small objects, which the C library keeps in its arenas; large ones go back by themselves.
    cache.extend(b"x" * size for _ in range(mebibytes * 256))


def drop(_signal, _frame):
    cache.clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


signal.signal(signal.SIGUSR1, drop)
fill()
open("/app/ready", "w").close()
while True:
    if os.path.exists("/app/grow"):
        cache.clear()
        fill()
        os.unlink("/app/grow")
    time.sleep(0.01)
