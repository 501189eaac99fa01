"""NVFlare's Controller and Executor, which carry the messages.

These are the only classes that a kit lets a job name (``kits.CLASSES``); they take no arguments. After a barrier (a
task that every silo answers: before it, messages would not find their handlers) the server pushes messages and waits
for the replies. NVFlare's filters do not see such messages: the :class:`~tacit.federation.site.policy.Guard` in the
silo's host decides what may leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from tacit.engine.folder import write_json
from tacit.errors import TacitError, UserError
from tacit.exchange.post import SERVER
from tacit.federation.carrier.envelope import CALL, EVALUATE, MESSAGE
from tacit.federation.carrier.processes import party_log
from tacit.federation.kits import Kit
from tacit.federation.protocol.agreement import check_federated, taking_part
from tacit.federation.request import PROGRESS, RESULTS, TOPIC, read_job
from tacit.federation.server_host import OUTCOME, CoordinatorHost, Ended
from tacit.federation.site.host import AnalyzerHost, SiloHost, models_of
from tacit.federation.site.limits import message_bytes
from tacit.federation.site.models import FILE
from tacit.transport.packed import BARRIER
from tacit.transport.streams import MOST_BYTES, PROCESS

_CONTENT = "tacit"
_CHECK = 0.02  # seconds between two looks at the barrier


class SiloExecutor(Executor):
    """At a silo or the analyzer; the kit says which."""

    def __init__(self) -> None:
        super().__init__()
        self._host: SiloHost | AnalyzerHost | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            workspace = engine.get_workspace()
            kit = Kit.load(Path(workspace.get_root_dir()), "silo", "analyzer")
            host = SiloHost(kit) if kit.kind == "silo" else AnalyzerHost(kit)
            app = Path(workspace.get_app_dir(fl_ctx.get_job_id()))
            call: Callable[[bytes], bytes] = partial(host.call, lambda: read_job(app, kit)[0])
            for what, handler in {CALL: call, MESSAGE: host.message, EVALUATE: host.evaluate}.items():
                engine.register_aux_message_handler(f"{TOPIC}-{what}", partial(_handled, host, handler))
            self._host = host
        elif event_type == EventType.END_RUN and self._host is not None:
            self._host.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return make_reply(ReturnCode.OK if task_name == BARRIER else ReturnCode.TASK_UNKNOWN)


def _handled(
    host: SiloHost | AnalyzerHost, handler: Callable[[bytes], bytes], topic: str, request: Shareable, fl_ctx: FLContext
) -> Shareable:
    """Answer a message; after a call that is admitted, messages may be as large as the plan needs."""
    content = request.get(_CONTENT)
    answer = handler(content if isinstance(content, bytes) else b"")
    if topic == f"{TOPIC}-{CALL}" and host.admitted is not None:
        PROCESS.widen(MOST_BYTES + message_bytes(host.admitted))
    return _shareable(answer)


class Coordinator(Controller):
    """At the server."""

    def __init__(self) -> None:
        super().__init__()
        self._host: CoordinatorHost | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        # the constructor's argument sets another attribute than the one that is looked at (2.9.0)
        self.communicator._task_check_period = _CHECK
        # NVFlare would end the job 120 s after the last sign of life of a party; the exchange decides who is needed
        self.communicator._dead_client_grace = math.inf
        fl_ctx.get_engine().register_app_command(PROGRESS, self._progress)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace, job = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
        kit = Kit.load(Path(workspace.get_root_dir()), "server")
        results = Path(workspace.get_run_dir(job)) / RESULTS
        results.mkdir(exist_ok=True)
        try:
            sealed, timeout = read_job(Path(workspace.get_app_dir(job)), kit)
            if problem := models_of(kit).problem(sealed.model_name, sealed.model):
                raise UserError("not-supported", "model.name", problem, f"see {FILE} in docs/deploy.md")
            request = sealed.opened(len(kit.silos), is_accepted=True)
            check_federated(request.plan)
        except TacitError as error:
            party_log(kit).warning("refused job %s: %s", job, error)
            write_json(results / OUTCOME, Ended("refused", str(error), {SERVER: ("request",)})._asdict())
            return
        PROCESS.widen(MOST_BYTES + message_bytes(request.plan))
        parties = taking_part(request.plan, kit.silos)
        here = [client.name for client in fl_ctx.get_engine().get_clients() if client.name in parties]
        task = Task(BARRIER, Shareable(), timeout=timeout)
        self.broadcast_and_wait(task, fl_ctx, here, min_responses=len(here), abort_signal=abort_signal)
        self._host = CoordinatorHost(kit, request, partial(self._send, fl_ctx, timeout))
        self._host.run()
        self._host.share(results)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Late answers to the barrier are ignored."""

    def _send(
        self, fl_ctx: FLContext, timeout: int, what: str, messages: Mapping[str, bytes]
    ) -> dict[str, bytes | None]:
        """To every silo its own message, in parallel (``multicast_aux_requests`` of NVFlare 2.9.0 fails)."""
        engine = fl_ctx.get_engine()

        def sent(silo: str) -> bytes | None:
            with engine.new_context() as context:
                request = _shareable(messages[silo])
                replies = engine.send_aux_request([silo], f"{TOPIC}-{what}", request, float(timeout), context)
            reply = (replies or {}).get(silo)
            content = reply.get(_CONTENT) if reply is not None and reply.get_return_code() == ReturnCode.OK else None
            return content if isinstance(content, bytes) else None

        with ThreadPoolExecutor(max(1, len(messages))) as pool:
            return dict(zip(messages, pool.map(sent, messages), strict=True))

    def _progress(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        return {"state": "gathering"} if self._host is None else dict(self._host.progress)


def _shareable(content: bytes) -> Shareable:
    message = Shareable()
    message[_CONTENT] = content
    return message
