"""What is taught by example is what an agent does afterwards: the same prompt, the same calls."""

import pytest

import agentlab as al
from agentlab.errors import ConfigError
from agentlab.rewards import same_number
from agentlab.tools import Calculator

TOOLS = {"calculator": Calculator}
CALL = {"type": "function", "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'}}
TALK = [
    {"role": "user", "content": [{"type": "text", "text": "6*7?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "42"},
]
TEACH = {"lora_rank": 0, "learning_rate": 1e-2, "conversations_per_step": 2, "tool_parser_name": "short"}


@pytest.fixture(scope="module")
def model():
    return al.tiny_model(seed=1)


def test_calls_of_tools_that_were_shown_are_made_by_an_agent_that_is_described_the_same_tools(model):
    specs = [spec.as_function() for spec in al.ToolAgent(tool_map=TOOLS).tools]
    trainer = al.SFTTrainer(model=model, config=al.SFTConfig(**TEACH))
    run = trainer.train([{"messages": TALK, "tools": specs}], steps=20).wait()
    assert run.metrics[-1]["loss"] < 0.1
    learner = al.GRPOLearner(
        model=trainer.trained_model,
        agent_class=al.ToolAgent,
        agent_kwargs={"tool_map": TOOLS, "tool_parser_name": "short"},
        env_class=al.ToolEnvironment,
        env_kwargs={"tool_map": TOOLS, "reward_fn": same_number},
        config=al.GRPOConfig(temperature=0.1, max_tokens=48, tokens_per_slot=512, max_concurrency=2),
    )
    episode = learner.run_episode({"id": "x", "prompt": "6*7?", "answer": 42})
    assert [turn.response for turn in episode.turns] == ["calculator(6*7)", "42"] and episode.reward == 1.0


def test_a_run_tells_where_calls_are_written_otherwise_than_by_the_template(model):
    trainer = al.SFTTrainer(model=model, config=al.SFTConfig(**(TEACH | {"tool_parser_name": "auto"})))
    run = trainer.train([TALK], steps=1).wait()
    assert any("written as a ToolAgent with the syntax 'hermes' reads them" in note for note in run.snapshot().notes)


def test_a_malformed_conversation_anywhere_in_a_list_is_refused_before_anything_is_trained(model):
    trainer = al.SFTTrainer(model=model, config=al.SFTConfig(**TEACH))
    with pytest.raises(ConfigError, match="Conversation 1, message 1 has the key 'refusal'"):
        trainer.train([TALK, [TALK[0], {"role": "assistant", "content": "", "refusal": "No."}]], steps=1)
