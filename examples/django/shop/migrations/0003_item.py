"""A new table. The field sets the default, so no SQL is needed."""

import django.db.models.deletion
import shop.ids
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_snowflake_ids")]
    operations = [
        migrations.CreateModel(
            "Item",
            [
                (
                    "id",
                    shop.ids.SnowflakeField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("product", models.TextField()),
                ("order", models.ForeignKey("shop.order", on_delete=django.db.models.deletion.CASCADE)),
            ],
        ),
    ]
