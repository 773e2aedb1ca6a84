from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"
    # For every model of this app without a primary key of its own.
    default_auto_field = "shop.ids.SnowflakeField"
