"""A program with a cache that it can drop.

    python3 cache.py 200      as the first process of a container

Its container has the variable VSCALED_BEFORE_SHRINK: 'signal: SIGUSR1'. Python frees unreferenced objects at once, but the C
library keeps much of their memory: malloc_trim returns it to the kernel. For tests, when the file /app/grow exists, the program
fills its cache again and removes the file.
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
    # The C library keeps small objects in its arenas; it returns large ones to the kernel at once.
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
