"""The settings of the example. The environment says where the database is: PGDATABASE, PGHOST, PGPORT, PGUSER."""

import os

SECRET_KEY = "of an example"
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
USE_TZ = True
# Shows what localization does to ids in templates.
USE_THOUSAND_SEPARATOR = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
    }
}
