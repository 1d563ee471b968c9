"""A client library is needed by the provider that uses it, and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tenure.connectors.http import HttpProvider
from tenure.connectors.provider import Provider
from tenure.connectors.smtp import SmtpProvider
from tenure.errors import Invalid

CASES = [
    ("httpx", "tenure[http]", lambda: HttpProvider("shop", "https://shop.example/effects")),
    ("aiosmtplib", "tenure[smtp]", lambda: SmtpProvider("mailer", "mail.example", 25)),
]


@pytest.mark.parametrize("library, extra, make", CASES)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    library: str, extra: str, make: Callable[[], Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, library, None)
        with pytest.raises(Invalid, match=rf"pip install '{extra[:6]}\[{extra[7:-1]}\]'") as refused:
            make()
        assert refused.value.code == "MISSING_EXTRA"
    assert isinstance(make(), Provider)


def test_importing_the_connectors_imports_no_client_library() -> None:
    program = (
        "import sys; import tenure.connectors.provider, tenure.connectors.http, tenure.connectors.smtp,"
        "tenure.connectors.simulator, tenure.testing; print(sorted({'httpx', 'aiosmtplib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
