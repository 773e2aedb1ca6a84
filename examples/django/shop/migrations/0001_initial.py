"""As Django wrote it for DEFAULT_AUTO_FIELD = "django.db.models.AutoField"."""

import django.db.models.deletion
from django.db import migrations, models

key = models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel("Customer", [("id", key), ("name", models.TextField())]),
        migrations.CreateModel(
            "Order",
            [
                ("id", key),
                ("customer", models.ForeignKey("shop.customer", on_delete=django.db.models.deletion.CASCADE)),
                ("watchers", models.ManyToManyField(related_name="watched", to="shop.customer")),
            ],
        ),
    ]
