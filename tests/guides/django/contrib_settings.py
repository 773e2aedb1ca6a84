"""The settings of the example, with the apps that `django-admin startproject` installs."""

import os

from settings import *

# Another one, for the time before the project has used snowflake ids.
DEFAULT_AUTO_FIELD = os.environ.get("AUTO_FIELD", DEFAULT_AUTO_FIELD)
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES[0]["OPTIONS"] = {
    "context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]
}
