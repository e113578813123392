"""How many random programs a test makes: as many as CI has time for, or many more.

`pytest tests/properties --hypothesis-profile=long` makes 20 times as many, other ones each time.
"""

from __future__ import annotations

from hypothesis import settings

CI = 40
"""What a test makes that says nothing of it."""


def programs(count: int) -> settings:
    """Return the settings for so many programs in CI."""
    return settings(max_examples=count * settings().max_examples // CI)
