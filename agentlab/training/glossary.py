"""Every metric that a run emits, in a sentence each: `print(al.glossary.table())`.

Means are over the sampled tokens that were trained on, unless they say otherwise; NaN where there was
nothing to measure. With several epochs per batch, values of the loss are means over epochs.
"""

METRICS: dict[str, str] = {
    # the run
    "step": "updates done, this one included",
    "time_s": "seconds since the run began, those before a resumption included",
    # rewards and groups
    "reward_mean": "mean reward of the scored trajectories",
    "reward_std": "their standard deviation (population)",
    "solve_rate": "share of scored trajectories with a reward of at least `solved_reward`",
    "reward/<part>": "mean of one part of the reward, where the reward function names parts",
    "group_std_mean": "mean over groups of the standard deviation of a group's rewards",
    "equal_groups_share": "share of groups whose rewards are all equal: they teach nothing",
    "filtered_share": "share of the groups ended since the update before that `filter_equal_rewards` dropped",
    "groups": "groups given to the trainer",
    "skipped_groups": "of them with nothing to learn: every advantage is 0",
    "trajectories": "trajectories that count in the loss",
    "unscored": "trajectories left out because their reward is missing",
    "unsampled": "trajectories left out because the policy sampled no token of them",
    # lengths and ends of episodes
    "turns_mean": "model calls per episode",
    "turns_max": "most model calls of an episode",
    "sampled_mean": "sampled tokens per episode",
    "sampled_max": "most sampled tokens of an episode",
    "truncated_share": "share of episodes cut before their environment ended them",
    "truncated_max_tokens_share": "share cut because the last model call reached `max_tokens`",
    "truncated_context_share": "share cut because prompt and answers filled the context",
    "truncated_timeout_share": "share cut by `episode_timeout_s`",
    "truncated_max_turns_share": "share cut because the turns were used up",
    "failed_share": "share of episodes without a reward",
    # the loss
    "loss": "the scalar that was minimised",
    "kl": "estimated divergence from the reference, nats per token; 0 where beta is 0",
    "entropy": "of the policy at its sampled tokens, nats per token, at the sampling temperature",
    "ratio_mean": "probability of a token under the trained weights over that under the weights that sampled it",
    "ratio_min": "its smallest value",
    "ratio_max": "its largest value",
    "clip_share": "share of tokens whose gradient the clip took away (in CISPO: whose ratio it bounded)",
    "correction_mean": "off-policy weight of a token, old policy over sampler; 1 without corrections",
    "bounded_share": "share of tokens whose off-policy weight was cut down to its cap",
    "masked_share": "share of tokens that an off-policy correction masked out",
    "grad_norm": "global norm of the gradient, before it was clipped",
    "learning_rate": "of this update",
    "nonfinite": "1 where the gradient was not finite and the weights were left as they were",
    # age, and agreement of engine and trainer
    "staleness_mean": "updates between the weights that sampled a token and these",
    "staleness_max": "its largest value; at most `max_off_policy_steps`",
    "stale_share": "share of the groups ended since the update before that were dropped for their age",
    "logprob_gap_mean": "|trainer's - sampler's log-probability| of a token; about 1e-4 at equal weights",
    "logprob_gap_max": "its largest value",
    "logprob_gap_alarm": "1 where the mean gap is above 0.05 nats though these very weights sampled every token",
    # work and waiting
    "tokens": "tokens that were computed (a shared prompt once per row)",
    "sampled_tokens": "of them trained on",
    "weighted_tokens": "the sum of their weights in a demonstration's loss; the same number where none has a weight",
    "tokens_per_s": "tokens / seconds, all epochs counted",
    "padding_share": "share of the computed places that held no token",
    "shared_prefix_saving": "share of the tokens that need not be computed because prompts are shared",
    "micro_batches": "micro-batches computed",
    "seconds": "of the whole update on the learner thread",
    "update_s": "seconds from the batch to the new weights, as the run saw it",
    "compiled_late": "programs that the engine compiled after its warm-up, so far; anything above 0 is a fault",
    "wait_batch_s": "seconds that the learner waited for this batch",
    "call_queued_s": "mean seconds that a model call waited in the engine for its first step, since the update before",
    "call_prefill_s": "mean seconds in which the engine read its prompt",
    "call_decode_s": "mean seconds in which the engine sampled its tokens",
    "prompt_cached_share": "share of the prompts' tokens that the engine had in its cache and did not compute again",
    "cache_used": "share of the engine's cache that running requests held at the update; NaN where it does not tell",
    "wait_policy_s": "seconds that groups ready to begin waited for newer weights, since the update before",
}
"""By name, in the order of `table()`."""


def table() -> str:
    """All metrics as a Markdown table."""
    return "\n".join(
        ["| metric | what it is |", "| --- | --- |", *(f"| `{n}` | {what} |" for n, what in METRICS.items())]
    )
