from django.apps import AppConfig
from django.db.models.signals import pre_migrate

from shop.ids import create_extension


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        # Before `manage.py migrate` creates its first table, also in the database of tests.
        pre_migrate.connect(create_extension, sender=self)
