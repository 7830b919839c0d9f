"""Prices to be looked up: nobody can know them without the tool."""

import random
from collections.abc import Callable, Sequence

from agentlab.errors import ConfigError
from agentlab.tasks.base import DrawnTasks, Split
from agentlab.types import Task

ITEMS = (
    *("lamp", "chair", "table", "clock", "mirror", "vase", "rug", "desk", "sofa", "kettle", "mug", "bowl", "spoon"),
    *("plate", "pillow", "blanket", "candle", "basket", "broom", "bucket", "ladder", "hammer", "pencil", "bottle"),
)


def prices(
    seed: int = 0,
    count: int | None = None,
    *,
    split: Split = "train",
    items: Sequence[str] = ITEMS,
    table_size: int = 8,
    price_range: tuple[int, int] = (11, 99),
    max_quantity: int = 1,
    prompt: str | None = None,
) -> DrawnTasks:
    """Tasks such as "What is the price of a lamp?"; each has a price list of its own.

    The list is in `data["table"]`, where the tool `Lookup()` finds it, and the answer in
    `data["answer"]`. Prices are drawn anew for every task, so they cannot be learned by heart.

    Args:
        seed: The same seed draws the same tasks.
        count: How many; None for no end.
        split: "eval" asks only for items at prices that "train" never asks for.
        items: What is sold.
        table_size: Items in each price list.
        price_range: Lowest and highest price.
        max_quantity: Most pieces that are asked for; above 1 the answer is a product.
        prompt: How it is asked, with {item}, and {quantity} if max_quantity is above 1.

    Raises:
        ConfigError: an option is impossible.
    """
    low, high = price_range
    if not 0 <= low <= high:
        raise ConfigError(f"price_range must be the lowest and the highest price, got {price_range}.")
    if not 1 <= table_size <= len(items):
        raise ConfigError(f"table_size must lie in 1 to {len(items)}, the number of items, got {table_size}.")
    if max_quantity < 1:
        raise ConfigError(f"max_quantity must be at least 1, got {max_quantity}.")
    several = max_quantity > 1
    asked = prompt or ("What do {quantity} pieces of {item} cost?" if several else "What is the price of a {item}?")
    if "{item}" not in asked or (several and "{quantity}" not in asked):
        raise ConfigError(f"prompt must contain {{item}}{' and {quantity}' if several else ''}, got {asked!r}.")

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Task]]:
        listed = rng.sample(list(items), table_size)
        table = {item: rng.randint(low, high) for item in listed}
        item, quantity = rng.choice(listed), rng.randint(1, max_quantity)
        text = asked.replace("{item}", item).replace("{quantity}", str(quantity))
        data = {"answer": str(table[item] * quantity), "item": item, "quantity": quantity, "table": table}
        return f"{quantity} {item} {table[item]}", lambda name: Task(name, text, data)

    return DrawnTasks("prices", draw, seed=seed, count=count, split=split)
