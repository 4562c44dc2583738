"""A manager of sandboxes that resizes a container through the agent's socket (docs/socket.md).

    pip install grpcio grpcio-tools
    python -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. \
        proto/vscaled/control/v1/control.proto proto/vscaled/report/v1/report.proto
    python examples/resize.py /run/vscaled/vscaled.sock shop/web app 256Mi

The call returns when the kernel has the limit at every level. It ends with 0 then, or prints why not.
"""

import os
import sys
import time

sys.path.insert(0, os.getcwd())  # where protoc put the modules

import grpc
from vscaled.control.v1 import control_pb2, control_pb2_grpc

# The kernel has the values. RuntimeOwed: the runtime's stored spec follows. SpecLater: the API server gets them when it is back.
DONE = {"Applied", "Unchanged", "RuntimeOwed", "SpecLater"}


def resize(agent, pod, container, limit):
    """Sets a memory limit for ten minutes. Returns the change; raises grpc.RpcError with the agent's reason."""
    values = control_pb2.Requirements(limits=control_pb2.Amounts(memory=limit))
    request = control_pb2.ResizeRequest(
        pod=pod,
        containers=[control_pb2.ContainerValues(name=container, values=values)],
        ttl_us=600_000_000,
        reason="an example",
    )
    return agent.Resize(request, timeout=65).change


def main():
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} SOCKET POD CONTAINER LIMIT")
    socket, pod, container, limit = sys.argv[1:]
    with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")]) as channel:
        agent = control_pb2_grpc.ControlStub(channel)
        began = time.monotonic()
        try:
            change = resize(agent, pod, container, limit)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")
        took = (time.monotonic() - began) * 1000
        print(f"{change.namespace}/{change.name}: {change.outcome} in {took:.1f} ms {change.reason}".rstrip())
        sys.exit(0 if change.outcome in DONE else 1)


if __name__ == "__main__":
    main()
