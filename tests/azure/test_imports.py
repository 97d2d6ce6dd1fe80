"""Nothing slow is loaded before it is needed."""

import subprocess
import sys

SLOW = ("azure.core", "azure.identity", "azure.servicebus", "azure.mgmt", "aiohttp")


def test_the_adapters_load_no_sdk_until_they_connect() -> None:
    program = (
        "import sys\n"
        "import sbpair.azure, sbpair.azure.messaging, sbpair.azure.administration, sbpair.azure.management\n"
        "from sbpair.core.access import AuthMethod, NamespaceAccess, Secret\n"
        "text = 'Endpoint=sb://contoso/;SharedAccessKeyName=k;SharedAccessKey=a2V5'\n"
        "access = NamespaceAccess('contoso', 'contoso', AuthMethod.CONNECTION_STRING, Secret(text))\n"
        "sbpair.azure.make_messaging(access).sender('q')\n"
        "sbpair.azure.make_admin(access)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "sbpair.azure.messaging" in loaded
    assert [name for name in loaded if name.startswith(SLOW)] == []
