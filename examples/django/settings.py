"""The settings of the example. The environment says where the database is: PGDATABASE, PGHOST, PGPORT, PGUSER."""

import os

SECRET_KEY = "of an example"
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
USE_TZ = True
# For every model without a primary key of its own, and for the tables of many-to-many fields.
DEFAULT_AUTO_FIELD = "shop.ids.SnowflakeField"
# Shows what localization does to ids in templates.
USE_THOUSAND_SEPARATOR = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
    }
}
