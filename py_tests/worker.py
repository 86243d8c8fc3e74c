"""A rank of the tests: runs the functions that the launcher names, one after another, and reports."""

from __future__ import annotations

import faulthandler
import functools
import importlib
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Context:
    """What a test function gets first: its rank, the number of ranks, a process group and a line to the launcher."""

    def __init__(self, connection: Connection, rank: int, size: int, directory: str) -> None:
        self._connection = connection
        self.rank = rank
        self.size = size
        self.directory = directory
        self.subgroups: dict[int, Any] = {}
        self.meetings: dict[int, int] = {}
        self.made: dict[tuple[int, ...], int] = {}
        self.pg: Any = None

    def say(self, what: Any) -> None:
        self._connection.send(("say", what))

    def listen(self) -> Any:
        """Blocks until the launcher tells something."""
        return self._connection.recv()

    def barrier(self) -> None:
        """Meets the other ranks of this context without its process group, which a fault may have left unusable."""
        store = dist.distributed_c10d._get_default_store()
        self.meetings.setdefault(self.size, 0)
        self.meetings[self.size] += 1
        target = self.meetings[self.size] * self.size
        key = f"test barrier of {self.size}"
        if store.add(key, 1) < target:
            while store.add(key, 0) < target:
                time.sleep(0.01)

    def process_group(self, ranks: list[int] | None = None) -> Any:
        """A new process group of these ranks in this order (or of the context's), made by its members alone.

        By hand, since torch's own function sorts the ranks or has to be called by every rank of the world.
        """
        ranks = list(range(self.size)) if ranks is None else ranks
        number = self.made[tuple(ranks)] = self.made.get(tuple(ranks), 0) + 1
        prefix = f"by hand/{number}/{'-'.join(map(str, ranks))}"
        store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
        rank = ranks.index(self.rank)
        pg = dist.ProcessGroup(store, rank, len(ranks))
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, len(ranks), timedelta(seconds=60))
        pg._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        return pg

    def find(self, module: str, name: str) -> Any:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))

    def for_subgroup(self, size: int) -> Context:
        other = Context(self._connection, self.rank, size, self.directory)
        other.pg = self.subgroups[size]
        other.meetings, other.made = self.meetings, self.made
        return other


def _initialise(context: Context, store_kind: str, connection: Connection) -> None:
    store: Any
    if store_kind == "file":
        store = dist.FileStore(str(Path(context.directory, "store")), context.size)
    elif context.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, context.size, is_master=True, wait_for_workers=False)
        connection.send(("port", store.port))
    else:
        store = dist.TCPStore("127.0.0.1", connection.recv(), context.size, is_master=False)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=context.rank, world_size=context.size, timeout=limit)
    context.pg = dist.group.WORLD


def main() -> int:
    descriptor, rank, size, store_kind, directory, subgroups = sys.argv[1:]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    Path(directory, f"pid{rank}").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    connection = Connection(int(descriptor))
    context = Context(connection, int(rank), int(size), directory)
    _initialise(context, store_kind, connection)
    if subgroups == "1":
        for count in range(1, context.size + 1):
            context.subgroups[count] = dist.new_group(list(range(count)), timeout=timedelta(seconds=60))
        connection.send(("value", None))
    while (task := connection.recv()) is not None:
        module, name, args = task
        try:
            connection.send(("value", context.find(module, name)(context, *args)))
        except BaseException:
            connection.send(("error", traceback.format_exc()))
            if subgroups == "0":
                raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
