"""The wall of writers: host memory into a file by threads, and nothing else."""

import os
import threading

MIB = 1 << 20


def write_plainly(path, pieces, threads=8, chunk=8 * MIB):
    """Threads that write chunks of host memory, with O_DIRECT where that is possible, and fsync."""
    jobs, offset = [], 0
    for piece in pieces:
        whole = len(piece) // 4096 * 4096  # the rest is too little to matter
        jobs += [(offset + at, piece[at : min(at + chunk, whole)]) for at in range(0, whole, chunk)]
        offset += whole
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(fd, 0, max(offset, 1))
    try:
        direct = os.open(path, os.O_WRONLY | os.O_DIRECT)
        os.pwrite(direct, jobs[0][1], 0)
    except OSError:
        direct = fd
    jobs.reverse()

    def work():
        while True:
            try:
                at, data = jobs.pop()
            except IndexError:
                return
            try:
                os.pwrite(direct, data, at)
            except OSError:  # not aligned
                os.pwrite(fd, data, at)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.fsync(fd)
    os.close(fd)
    if direct != fd:
        os.close(direct)
