"""Agents: what they keep of a conversation, and what they make of a turn."""

from typing import Any

import pytest

from agentlab.agents import ConversationAgentBase, FrozenLakeAgent, ModelAgent, ToolAgent
from agentlab.errors import ConfigError
from agentlab.tools import Calculator
from agentlab.types import Action, ToolCall, ToolResult

SYSTEM = {"role": "system", "content": "S"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_a_model_agent_says_what_the_model_says():
    agent = ModelAgent("S")
    agent.update_from_env("What is it?", 0.0, False, {})
    assert agent.update_from_model("A pen.", finish_reason="stop") == Action("A pen.")
    agent.update_from_env(None, 1.0, True, {})
    assert agent.messages == [SYSTEM, user("What is it?"), assistant("A pen.")]


def test_without_a_system_prompt_there_is_no_system_message():
    assert ModelAgent().messages == []


def test_examples_follow_the_system_prompt_and_are_copied():
    examples = [user("a"), assistant("b")]
    agent = ModelAgent("S", examples=examples)
    agent.messages[1]["content"] = "changed"
    assert examples[0] == user("a")
    assert agent.messages == [SYSTEM, user("changed"), assistant("b")]


@pytest.mark.parametrize(
    ("observation", "messages"),
    [
        (None, []),
        ("", []),
        ("look", [user("look")]),
        (7, [user("7")]),
        ({"x": 1}, [user("{'x': 1}")]),
        ((0.5, 1), [user("(0.5, 1)")]),
        (ToolResult("calculator", "7"), [{"role": "tool", "name": "calculator", "content": "7"}]),
        (
            (ToolResult("calculator", "7"), ToolResult("", "Error: empty", failed=True)),
            [{"role": "tool", "name": "calculator", "content": "7"}, {"role": "tool", "content": "Error: empty"}],
        ),
        ({"role": "user", "content": "x"}, [user("x")]),
        ([user("x"), user("y")], [user("x"), user("y")]),
        ((), []),
    ],
)
def test_an_observation_becomes_messages(observation, messages):
    agent = ModelAgent()
    agent.update_from_env(observation, 0.0, False, {})
    assert agent.messages == messages


def test_a_response_is_recorded_once_a_turn_also_where_nothing_was_observed_in_between():
    agent = ModelAgent(examples=[assistant("example")])
    for _ in range(2):
        agent.update_from_model("yes")
        agent.record_response("yes")
        agent.update_from_env(None, 0.0, False, {})
    assert agent.messages == [assistant("example"), assistant("yes"), assistant("yes")]


def test_an_agent_of_ones_own_writes_update_from_model_only():
    class MyAgent(ConversationAgentBase):
        def update_from_model(self, response, **kwargs) -> Action:
            return Action(response.upper())

    agent = MyAgent("S")
    agent.update_from_env("q", 0.0, False, {})
    assert agent.update_from_model("a") == Action("A")
    agent.record_response("a")
    assert agent.messages == [SYSTEM, user("q"), assistant("a")]


def test_a_tool_agent_acts_by_the_calls_of_a_turn_and_keeps_its_text_whole():
    agent = ToolAgent(system_prompt="S", tool_map={"calculator": Calculator})
    text = 'I see. <tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>'
    assert agent.update_from_model(text) == Action((ToolCall("calculator", {"expression": "1"}),))
    assert agent.messages[-1] == assistant(text)
    assert agent.update_from_model("It is 1.") == Action("It is 1.")


def test_a_tool_agent_passes_a_broken_call_on_with_its_error():
    (call,) = ToolAgent(tool_map={"calculator": Calculator}).update_from_model("<tool_call>{").value
    assert call.error


@pytest.mark.parametrize("name", ["hermes", "json", "react", "short", "qwen3_coder", "llama3", "gemma"])
def test_a_tool_agent_describes_its_tools_in_the_syntax_it_reads(name):
    agent = ToolAgent(tool_parser_name=name, tool_map={"calculator": Calculator})
    assert "calculator(expression: string)" in agent.messages[0]["content"]


def test_the_description_of_the_tools_can_be_left_out():
    agent = ToolAgent("S", {"calculator": Calculator}, describe_tools=False)
    assert agent.messages == [SYSTEM]


def test_an_unknown_syntax_is_refused_when_the_agent_is_made():
    with pytest.raises(ConfigError, match="Did you mean 'gemma'"):
        ToolAgent(tool_parser_name="gema")


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("right", "right"),
        ("I could go left, but I go DOWN.", "down"),
        ("I stay.", "I stay."),
        ("upright", "upright"),
    ],
)
def test_a_lake_agent_takes_the_last_direction_it_names(response, action):
    assert FrozenLakeAgent().update_from_model(response) == Action(action)
