"""The engine of vLLM servers against servers of our own that speak vLLM's routes: no vLLM is needed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from fake_vllm import FakeVLLM

from agentlab import tracing
from agentlab.errors import ConfigError, EngineError
from agentlab.inference import VLLMServerEngine, vllm_guard
from agentlab.inference.vllm_plugin import differences
from agentlab.inference.vllm_process import ServerProcess
from agentlab.inference.vllm_weights import write_weights
from agentlab.models import tiny_model
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

MODEL = tiny_model(seed=0)


@pytest.fixture
def fakes() -> Iterator[list[FakeVLLM]]:
    made = [FakeVLLM(), FakeVLLM()]
    yield made
    for fake in made:
        fake.stop()


def engine_of(*fakes: FakeVLLM, folder: Path) -> VLLMServerEngine:
    return VLLMServerEngine([fake.url for fake in fakes], model=MODEL, weights_folder=folder)


def ask(id: str, session: str = "", *, prompt: int = 5, max_tokens: int = 8) -> GenerationRequest:
    return GenerationRequest(id, session or id, tuple(range(1, prompt + 1)), SamplingParams(max_tokens=max_tokens))


def served(engine: VLLMServerEngine, main: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            await main()
            serving.cancel_scope.cancel()

    anyio.run(body)


def requests_at(fake: FakeVLLM) -> int:
    return fake.paths().count("/inference/v1/generate")


async def under_way(group, engine, fake):
    """A request that has reached the server."""
    group.start_soon(engine.generate, ask("a"))
    while not fake.num_running:
        await anyio.sleep(0.02)


def test_tokens_logprobs_versions_and_the_share_from_the_cache_arrive(fakes, tmp_path):
    answers: list[Completion] = []
    engine = engine_of(fakes[0], folder=tmp_path)

    async def main() -> None:
        answers.append(await engine.generate(ask("a")))
        answers.append(await engine.generate(ask("b", max_tokens=2)))

    served(engine, main)
    assert (answers[0].tokens, answers[0].logprobs) == ((7, 8, 9), (-0.5, -0.5, -0.5))
    assert (answers[0].policy_versions, answers[0].finish_reason) == ((0, 0, 0), "stop")
    assert (answers[0].request_id, answers[0].num_prefilled) == ("a", 3)
    assert answers[1].finish_reason == "length"
    body = next(body for path, body in fakes[0].calls if path == "/inference/v1/generate")
    assert body["token_ids"] == [1, 2, 3, 4, 5]
    assert set(MODEL.config.eos_token_ids) <= set(body["sampling_params"]["stop_token_ids"])


def test_a_prompt_that_does_not_fit_never_reaches_a_server_and_a_long_answer_is_cut_as_context(fakes, tmp_path):
    answers: list[Completion] = []
    engine = engine_of(fakes[0], folder=tmp_path)

    async def main() -> None:
        answers.append(await engine.generate(ask("over", prompt=64)))
        answers.append(await engine.generate(ask("nearly", prompt=62)))

    served(engine, main)
    assert (answers[0].tokens, answers[0].finish_reason) == ((), "context")
    assert (len(answers[1].tokens), answers[1].finish_reason) == (2, "context")
    assert requests_at(fakes[0]) == 1


def test_weights_are_installed_before_the_first_request_and_after_every_update(fakes, tmp_path):
    versions: list[tuple[int, ...]] = []
    engine = engine_of(fakes[0], folder=tmp_path)

    async def main() -> None:
        versions.append((await engine.generate(ask("a"))).policy_versions)
        engine.update_policy(Policy(4, MODEL.params))
        versions.append((await engine.generate(ask("b"))).policy_versions)

    served(engine, main)
    assert versions == [(0, 0, 0), (4, 4, 4)]
    paths = [path for path in fakes[0].paths() if not path.startswith("/inference")]
    install = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
    assert paths == ["/finish_weight_update", *install, "/resume", *install, "/resume"]
    files = [Path(body["update_info"]["path"]) for path, body in fakes[0].calls if path == "/update_weights"]
    assert [file.suffix for file in files] == [".safetensors"] * 2
    assert {file.parent for file in files} == {tmp_path}
    assert list(tmp_path.iterdir()) == []  # they fill memory: none stays


def test_what_vllm_counts_of_itself_becomes_the_engines_counters_and_the_times_of_calls(fakes, tmp_path):
    fakes[0].metrics = {
        "prompt_tokens_total": 100,
        "prompt_tokens_cached_total": 40,
        "generation_tokens_total": 70,
        "kv_cache_usage_perc": 0.25,
        "request_queue_time_seconds_sum": 1,
        "request_prefill_time_seconds_sum": 3,
    }
    engine = engine_of(fakes[0], folder=tmp_path)
    answers: list[Completion] = []

    async def main() -> None:
        with anyio.fail_after(10):
            while not engine.stats().tokens_sampled:
                await anyio.sleep(0.02)
        answers.append(await engine.generate(ask("a")))

    began_ns = tracing.now_ns()
    served(engine, main)
    stats, answer = engine.stats(), answers[0]
    assert (stats.tokens_prefilled, stats.tokens_cached, stats.tokens_sampled) == (60, 40, 70)
    assert stats.cache_used == 0.25
    assert answer.queued_s * 3 == pytest.approx(answer.prefill_s)
    seconds = {span.stage: span.duration_s for span in tracing.spans(began_ns) if span.tags.get("request") == "a"}
    told = {"queueing": answer.queued_s, "prefill": answer.prefill_s, "decode": answer.decode_s}
    assert seconds == pytest.approx(told, abs=1e-6)


@pytest.mark.parametrize("pause", ["keep", "wait", "abort"])
def test_a_request_that_an_update_ended_begins_anew_under_the_new_weights(fakes, tmp_path, pause):
    engine = VLLMServerEngine(fakes[0].url, model=MODEL, weights_folder=tmp_path, pause=pause)
    fakes[0].token_s = 0.1
    answers: list[Completion] = []

    async def one() -> None:
        answers.append(await engine.generate(ask("a")))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            while not fakes[0].num_running:
                await anyio.sleep(0.02)
            engine.update_policy(Policy(3, MODEL.params))

    served(engine, main)
    assert answers[0].tokens == (7, 8, 9)
    assert set(answers[0].policy_versions) == {3}
    assert requests_at(fakes[0]) == (2 if pause == "abort" else 1)
    assert [query for query in fakes[0].queries if query] == [f"mode={pause}&clear_cache=false"] * 2


def test_a_request_that_somebody_else_ended_ends_the_engine_and_says_so(fakes, tmp_path):
    engine = engine_of(fakes[0], folder=tmp_path)
    fakes[0].token_s = 0.1

    async def main() -> None:
        async with anyio.create_task_group() as group:
            await under_way(group, engine, fakes[0])
            fakes[0].num_aborts += 1

    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(EngineError, match="aborted from elsewhere"))):
        served(engine, main)


def test_serving_that_ends_in_the_midst_of_an_update_ends_it_whole_and_can_begin_again(fakes, tmp_path):
    engine = engine_of(fakes[0], folder=tmp_path)
    answers: list[Completion] = []

    async def stopped() -> None:
        await engine.generate(ask("a"))
        engine.update_policy(Policy(6, MODEL.params))
        while fakes[0].paths().count("/pause") < 2:
            await anyio.lowlevel.checkpoint()

    async def again() -> None:
        answers.append(await engine.generate(ask("b")))

    served(engine, stopped)
    assert not fakes[0].paused
    assert fakes[0].version == "6"
    served(engine, again)
    assert set(answers[0].policy_versions) == {6}
    assert list(tmp_path.iterdir()) == []


def test_a_slow_server_takes_nothing_away_from_a_quick_one(fakes, tmp_path):
    """The slow one ends an update while the quick one reads the next."""
    engine = engine_of(*fakes, folder=tmp_path)
    quick, slow = fakes
    slow.update_s, quick.update_s = 0.2, 0.05
    versions: list[tuple[int, ...]] = []

    async def main() -> None:
        for version in range(1, 8):
            engine.update_policy(Policy(version, MODEL.params))
            while quick.version != str(version):
                await anyio.sleep(0.01)
        for session in range(4):
            versions.append((await engine.generate(ask(f"{session}", f"s{session}"))).policy_versions)

    served(engine, main)
    assert set(versions) == {(7, 7, 7)}
    assert quick.missing == slow.missing == []
    assert list(tmp_path.iterdir()) == []


def test_a_session_stays_with_its_server_and_new_ones_go_where_there_is_room(fakes, tmp_path):
    engine = engine_of(*fakes, folder=tmp_path)
    for fake in fakes:
        fake.token_s = 0.02

    async def main() -> None:
        await engine.generate(ask("warm"))
        for turn in range(3):
            async with anyio.create_task_group() as group:
                for session in range(6):
                    group.start_soon(engine.generate, ask(f"{session}-{turn}", f"s{session}"))

    served(engine, main)
    homes = []
    for fake in fakes:
        ids = [body["request_id"] for path, body in fake.calls if path == "/inference/v1/generate"]
        homes.append({id.partition("-")[0] for id in ids} - {"warm"})
    assert homes[0].isdisjoint(homes[1])
    assert {len(homes[0]), len(homes[1])} == {3}


def test_a_server_that_dies_is_left_out_and_taken_back_with_the_newest_weights(fakes, tmp_path):
    engine = engine_of(*fakes, folder=tmp_path)
    first, second = fakes

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for session in range(4):
                group.start_soon(engine.generate, ask(f"a{session}", f"s{session}"))
        first.stop()
        for session in range(4):
            await engine.generate(ask(f"b{session}", f"s{session}"))
        engine.update_policy(Policy(9, MODEL.params))
        await engine.generate(ask("c", "s0"))
        first.start()
        with anyio.fail_after(10):
            while first.version != "9":
                await anyio.sleep(0.05)

    served(engine, main)
    assert requests_at(second) >= 5
    assert not first.paused


def test_a_server_whose_engine_dies_is_left_out_and_its_requests_made_elsewhere(fakes, tmp_path):
    engine = engine_of(*fakes, folder=tmp_path)
    answers: list[Completion] = []

    async def one(session: int) -> None:
        answers.append(await engine.generate(ask(f"a{session}", f"s{session}")))

    async def main() -> None:
        for fake in fakes:
            fake.token_s = 0.1
        async with anyio.create_task_group() as group:
            for session in range(6):
                group.start_soon(one, session)
            while not (fakes[0].num_running and fakes[1].num_running):
                await anyio.sleep(0.01)
            fakes[0].engine_dead = True
        await one(7)
        engine.update_policy(Policy(2, MODEL.params))
        await one(8)

    served(engine, main)
    assert [answer.tokens for answer in answers] == [(7, 8, 9)] * 8
    assert set(answers[-1].policy_versions) == {2}


def test_of_several_servers_the_last_to_die_is_named(fakes, tmp_path):
    engine = engine_of(*fakes, folder=tmp_path)

    async def main() -> None:
        for fake in fakes:
            fake.token_s = 0.02
        for dies in (None, fakes[1]):
            if dies is not None:
                dies.stop()
            async with anyio.create_task_group() as group:
                for session in range(4):
                    group.start_soon(engine.generate, ask(f"{session}", f"s{session}"))
        fakes[0].stop()
        await anyio.sleep_forever()

    with pytest.RaisesGroup(pytest.RaisesExc(EngineError, match=f"the last was {fakes[0].url}")):
        served(engine, main)


def test_an_answer_cut_off_in_the_middle_is_asked_for_once_more(fakes, tmp_path):
    engine = engine_of(fakes[0], folder=tmp_path)
    answers: list[Completion] = []

    async def main() -> None:
        await engine.generate(ask("warm"))
        fakes[0].drop_next = 1
        answers.append(await engine.generate(ask("a")))

    served(engine, main)
    assert answers[0].tokens == (7, 8, 9)
    assert requests_at(fakes[0]) == 3


def test_the_death_of_the_last_server_reaches_everybody_within_two_seconds(fakes, tmp_path):
    engine = engine_of(fakes[0], folder=tmp_path)
    errors: list[str] = []
    took: list[float] = []

    async def one(id: str) -> None:
        with pytest.raises(EngineError) as caught:
            await engine.generate(ask(id))
        errors.append(str(caught.value))

    async def main() -> None:
        async with anyio.create_task_group() as waiting:
            with pytest.RaisesGroup(EngineError):
                async with anyio.create_task_group() as serving:
                    serving.start_soon(engine.serve)
                    for id in "ab":
                        waiting.start_soon(one, id)
                    while fakes[0].num_running < 2:
                        await anyio.sleep(0.02)
                    began_s = time.monotonic()
                    fakes[0].stop()
                    await anyio.sleep_forever()
        took.append(time.monotonic() - began_s)

    fakes[0].token_s = 0.2
    anyio.run(main)
    assert took[0] < 2.5
    assert len(errors) == 2
    assert all(fakes[0].url in error for error in errors)
    with pytest.raises(EngineError, match="No vLLM server is left"):
        engine.update_policy(Policy(1, MODEL.params))


def test_a_server_that_refuses_weights_ends_the_engine_and_stays_paused(fakes, tmp_path):
    fakes[0].refuse = "2 tensors do not fit, nothing was changed"
    engine = engine_of(fakes[0], folder=tmp_path)

    async def main() -> None:
        await engine.generate(ask("a"))

    with pytest.RaisesGroup(EngineError):
        served(engine, main)
    assert fakes[0].paused
    assert requests_at(fakes[0]) == 0
    with pytest.raises(EngineError, match="2 tensors do not fit"):
        engine.update_policy(Policy(1, MODEL.params))


def test_a_cancelled_request_closes_its_connection(fakes, tmp_path):
    engine = engine_of(fakes[0], folder=tmp_path)
    fakes[0].token_s = 0.1

    async def main() -> None:
        async with anyio.create_task_group() as group:
            await under_way(group, engine, fakes[0])
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            while fakes[0].num_running:
                await anyio.sleep(0.02)

    served(engine, main)


def test_wrong_options_are_refused_before_anything_starts(fakes, tmp_path):
    with pytest.raises(ConfigError, match="at least one"):
        VLLMServerEngine([], model=MODEL)
    with pytest.raises(ConfigError, match="pause must be"):
        VLLMServerEngine(fakes[0].url, model=MODEL, pause="later")  # pyright: ignore[reportArgumentType]
    with pytest.raises(EngineError, match="must answer at"):
        VLLMServerEngine("http://127.0.0.1:9", model=MODEL)
    with pytest.raises(ConfigError, match="structure and shapes"):
        engine_of(fakes[0], folder=tmp_path).update_policy(Policy(1, tiny_model(num_layers=1).params))
    with pytest.raises(ConfigError, match="cannot be run"):
        VLLMServerEngine.launch(MODEL, python="no-such-python")
    with pytest.raises(ConfigError, match="set by agentlab"):
        VLLMServerEngine.launch(MODEL, python=sys.executable, logprobs_mode="raw_logprobs")


def test_a_server_that_ends_at_once_is_told_with_its_last_lines_and_without_a_bar_in_a_log(tmp_path, capsys):
    process = ServerProcess(tmp_path, python=sys.executable)  # vLLM is not installed here
    with pytest.raises(EngineError, match=r"ended. Its last lines:\n[\s\S]*vllm"):
        process.wait_until_healthy(lambda _: False, timeout_s=60, progress=True)
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_told_with_the_size_that_is_needed():
    with pytest.raises(EngineError, match="must fit in"):
        write_weights(MODEL, Policy(1, MODEL.params), Path("/proc/weights.safetensors"))


def test_a_server_never_outlives_the_process_that_started_it(tmp_path):
    """Also when that process is killed and cannot clean up."""
    code = (
        "import subprocess, sys, time\n"
        f"guard = subprocess.Popen([sys.executable, {vllm_guard.__file__!r}, sys.executable, '-c',"
        " 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'], stdin=subprocess.PIPE,"
        " start_new_session=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while alive(server):
        assert time.monotonic() < deadline, "the server lives on"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Linear:
    def __init__(self, outputs: list[int], inputs: int):
        self.input_size, self.output_size, self.output_sizes = inputs, sum(outputs), outputs


class Norm:
    pass


def test_weights_are_compared_by_name_and_shape_with_fused_matrices_taken_apart():
    modules = {"layers.0.attn.qkv_proj": Linear([8, 4, 4], 8), "layers.0.norm": Norm()}
    model = SimpleNamespace(
        packed_modules_mapping={"qkv_proj": ["q_proj", "k_proj", "v_proj"]},
        named_modules=lambda: modules.items(),
        named_parameters=lambda: [
            ("layers.0.attn.qkv_proj.weight", np.empty(0)),
            ("layers.0.norm.weight", np.empty(8)),
        ],
    )
    fitting = {
        "layers.0.attn.q_proj.weight": (8, 8),
        "layers.0.attn.k_proj.weight": (4, 8),
        "layers.0.attn.v_proj.weight": (4, 8),
        "layers.0.norm.weight": (8,),
    }
    assert differences(model, fitting, 1) == []
    wrong = {**fitting, "layers.0.attn.k_proj.weight": (5, 8), "extra": (1,)}
    del wrong["layers.0.norm.weight"]
    assert sorted(differences(model, wrong, 1)) == [
        "extra is not known to the model",
        "layers.0.attn.k_proj.weight has shape [5, 8] and must have [4, 8]",
        "layers.0.norm.weight is missing",
    ]
