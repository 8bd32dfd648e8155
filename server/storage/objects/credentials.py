"""Which credentials a bucket is opened with, beyond what obstore finds by itself.

It reads the environment, web identities and the metadata of instances, and renews what expires. It
does not read ~/.aws: profiles and single sign-on are boto3's, which is asked where it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

_PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_OWN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables whose credentials obstore finds itself."""
_FILES = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)
_TRUE = ("1", "true", "yes", "y", "on", "t")


class NoCredentials(OSError):
    """A profile is set that cannot be read."""


def is_unsigned() -> bool:
    """Return whether requests to S3 are sent without credentials, as for a public bucket."""
    return os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in _TRUE


def s3_options() -> Mapping[str, Any]:
    """Return what a bucket of S3 is opened with beside the environment.

    Raises: NoCredentials if a profile is set, and boto3 is missing or does not find it.
    """
    profile = next((os.environ[name] for name in _PROFILES if os.environ.get(name)), "")
    if is_unsigned() or any(os.environ.get(name) for name in _OWN):
        return {}
    if find_spec("boto3") is None:
        if profile:
            problem = f"the profile {profile!r} of AWS_PROFILE is read by boto3, which is not"
            cure = "pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise NoCredentials(0, f"{problem} installed; {cure}")
        return {}
    if not (profile or has_files()):
        return {}
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        provider = Boto3CredentialProvider(boto3.Session())
    except (BotoCoreError, ValueError) as error:
        if profile:
            raise NoCredentials(0, f"the profile {profile!r} cannot be read: {error}") from error
        return {}  # files without credentials, as on an instance that has some of its own
    return {"credential_provider": provider}


def has_files() -> bool:
    """Return whether there are files of profiles."""
    return any(
        os.path.exists(os.path.expanduser(os.environ.get(name) or path)) for name, path in _FILES
    )


def cure(scheme: str) -> str:
    """Return where the credentials of a scheme come from, for an error."""
    if scheme == "gs":
        return "set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS to a file"
    if scheme == "az":
        return "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or a SAS token"
    if scheme == "https":
        return "web servers are asked without credentials"
    verb = "check" if "AWS_ACCESS_KEY_ID" in os.environ else "set"
    found = f"{verb} AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a role or a web identity"
    if has_files() and find_spec("boto3") is None:
        found += ", or pip install boto3, which reads ~/.aws"
    return f"{found}; AWS_SKIP_SIGNATURE=true for a public bucket"
