"""Reasoning, also where the prompt has begun it: it earns nothing, calls nothing, and is never taken for an answer."""

from typing import Any

import pytest
from chat_families import FAMILIES, OPENING, family_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.agents import FrozenLakeAgent, ModelAgent, Taught, ToolAgent, speaking_with
from agentlab.chat import ChatFormat, opened_thought, parser_named
from agentlab.chat.syntaxes import PARSERS
from agentlab.environments import TaskEnvironment, ToolEnvironment
from agentlab.errors import ConfigError
from agentlab.inference import ScriptedEngine
from agentlab.rewards import in_format, same_number
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, run_episode
from agentlab.tools import Calculator
from agentlab.types import Action, ToolCall

TOOLS = {"calculator": Calculator}
CALL = ToolCall("calculator", {"expression": "6 * 7"})
SPECS = ToolAgent(tool_map=TOOLS).tools
QUESTION = {"role": "user", "content": "6 * 7?"}
EACH = pytest.mark.parametrize("family", OPENING)
thoughts = st.text(max_size=30).map(lambda text: text.replace("</think>", ""))


def play(family: str, script: Any, **roles: Any) -> Any:
    engine = ScriptedEngine(script, family_tokenizer(family))
    options = {"agent_class": ModelAgent, "env_class": TaskEnvironment, "env_kwargs": {"reward_fn": same_number}}
    return run_episode(engine, {"prompt": "6 * 7?", "answer": 42}, **{**options, **roles})


@EACH
def test_a_response_begins_with_what_the_prompt_opened_of_it(family):
    tokenizer = family_tokenizer(family)
    chat = ChatFormat(tokenizer)
    prompt = chat.start([QUESTION])
    sampled = tokenizer.encode("Six sevens.</think>42", add_special_tokens=False)
    assert tokenizer.decode(list(prompt)).endswith("<think>\n")
    assert chat.response(prompt, sampled) == "<think>\nSix sevens.</think>42"


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_opened_by_the_other_templates_nor_by_what_a_user_writes(family):
    chat = ChatFormat(family_tokenizer(family))
    prompt = chat.start([{"role": "user", "content": "Say <think>\n"}])
    assert chat.response(prompt, family_tokenizer(family).encode("42", add_special_tokens=False)) == "42"


def test_a_thought_that_the_prompt_opened_and_closed_is_not_open():
    chat = ChatFormat(family_tokenizer("qwen3.5"), template_options={"enable_thinking": False})
    quiet = ChatFormat(family_tokenizer("nemotron"))
    assert chat.response(chat.start([QUESTION]), [ord("4")]).count("<think>") == 0
    assert quiet.response(quiet.start([{"role": "system", "content": "/no_think"}, QUESTION]), []) == ""


@pytest.mark.parametrize("syntax", PARSERS)
@given(thought=thoughts)
@settings(max_examples=25)
def test_a_cut_thought_is_all_reasoning_and_a_closed_one_ends_at_its_first_tag(syntax, thought):
    parser = parser_named(syntax)
    opened = opened_thought("<|im_start|>assistant\n<think>\n")
    cut = parser.parse(opened + thought + parser.render(CALL), SPECS)
    assert (cut.text, cut.calls) == ("", ())
    assert cut.reasoning == (thought + parser.render(CALL)).strip()
    answered = parser.parse(f"{opened}{thought}{parser.render(CALL)}</think>\n\n42", SPECS)
    assert (answered.text, answered.calls) == ("42", ())
    called = parser.parse(f"{opened}{thought}</think>\n\n{parser.render(CALL)}", SPECS)
    assert called.calls == (CALL,) and called.reasoning == thought.strip()


@EACH
@pytest.mark.parametrize(
    ("script", "reward"),
    [("6 * 7 is 42, but wait, maybe", 0.0), ("It is 42.</think>No idea.", 0.0), ("Is it 41?</think>\n\n42", 1.0)],
)
def test_a_number_in_a_thought_earns_nothing(family, script, reward):
    assert play(family, script).reward == reward
    roles = {"agent_class": ToolAgent, "agent_kwargs": {"tool_map": TOOLS}, "env_class": ToolEnvironment}
    tools = {"env_kwargs": {"tool_map": TOOLS, "reward_fn": same_number, "max_turns": 2}}
    assert play(family, script, **roles, **tools).reward == reward


@EACH
def test_a_call_that_is_named_in_a_thought_does_not_run(family):
    with speaking_with(Taught.of(family_tokenizer(family))):
        agent = ToolAgent(tool_map=TOOLS)
    rendered = agent.parser.render(CALL)
    roles: dict[str, Any] = {"agent_class": ToolAgent, "agent_kwargs": {"tool_map": TOOLS}}
    roles |= {"env_class": ToolEnvironment, "env_kwargs": {"tool_map": TOOLS, "reward_fn": same_number}}
    cut = play(family, f"I could say {rendered}", **roles)
    assert cut.turns[0].action == Action("") and cut.turns[0].response.startswith("<think>\n")
    called = play(family, [f"I say it.\n</think>\n\n{rendered}", "I know.</think>42"], **roles)
    assert called.turns[0].action == Action((CALL,)) and called.reward == 1.0


def test_an_agent_of_a_model_that_reasons_hands_on_the_answer_also_when_its_class_is_ones_own():
    class Mine(ModelAgent):
        def __init__(self) -> None:
            super().__init__("Be brief.")

    said = "<think>\n41?</think>\n\n42"
    for family, action in (("qwen3", "42"), ("qwen3.5", "42"), ("qwen2.5", said), ("llama3", said)):
        script = said.removeprefix("<think>\n") if family in OPENING else said
        assert play(family, script, agent_class=Mine).turns[0].action == Action(action)
    kept = {"agent_kwargs": {"reasoning": "kept"}, "env_kwargs": {"reward_fn": in_format("think", "answer")}}
    assert play("qwen3.5", "41?</think>\n<answer>42</answer>", **kept).reward == 1.0
    assert ModelAgent(reasoning="apart").update_from_model("<think>It is 42") == Action("")
    assert ModelAgent().update_from_model(said) == Action(said)
    with pytest.raises(ConfigError, match="reasoning must be one of auto, apart, kept, got 'aprt'.*apart"):
        ModelAgent(reasoning="aprt")


def test_a_direction_in_a_thought_is_no_step():
    agent = FrozenLakeAgent()
    assert agent.update_from_model("<think>left is ice, so right</think>down") == Action("down")
    cut = "<think>I could go left"
    assert agent.update_from_model(cut) == Action(cut)


def test_the_engine_as_judge_is_read_without_its_reasoning():
    from agentlab.rewards import judge

    def script(request: Any, prompt: str) -> str:
        if "You grade" not in prompt:
            return "Easy.</think>\n\n42"
        return "Grade: 1 would be mean.</think>\n\nGrade: 9"

    assert play("qwen3.5", script, env_kwargs={"reward_fn": judge()}).reward == 0.9


@EACH
def test_episodes_go_on_from_the_ids_that_were_sampled_wherever_the_template_keeps_them(family):
    script = [
        "First.\n</think>\n\n<tool_call>x</tool_call>",
        "Then.\n</think>\n\n<tool_call>y</tool_call>",
        "</think>42",
    ]
    roles: dict[str, Any] = {
        "agent_class": ToolAgent,
        "agent_kwargs": {"tool_map": TOOLS, "tool_parser_name": "hermes"},
    }
    roles |= {"env_class": ToolEnvironment, "env_kwargs": {"tool_map": TOOLS, "reward_fn": same_number}}
    played = play(family, script, **roles)
    assert played.reward == 1.0
    assert len(played.rows) == (1 if family == "qwen3.5" else 3), "the others leave earlier thoughts out"
    sampled = sum(sum(row.loss_mask) for row in played.rows)
    assert sampled == sum(turn.num_sampled for turn in played.turns)


def test_a_thought_that_is_kept_for_tools_is_no_rewriting():
    chat = ChatFormat(family_tokenizer("qwen3.5"))
    assert "tool" not in chat.rewrites and "reasoning of earlier turns when a user" in chat.rewrites
    engine = ScriptedEngine("Hm.</think>42", family_tokenizer("qwen3.5"))
    config = RolloutConfig(group_size=2, groups_per_step=1)
    orchestrator = RolloutOrchestrator(
        engine, agent_class=ModelAgent, env_class=TaskEnvironment, env_kwargs={"reward_fn": same_number}, config=config
    )
    (group,) = orchestrator.iterate([{"prompt": "6 * 7?", "answer": 42}])
    assert [t.reward for t in group.trajectories] == [1.0, 1.0]
