"""Changes tables that exist to snowflake ids. Rows keep their ids."""

import shop.ids
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        # If the locks are not free in time, fail, instead of blocking all other clients of the tables.
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        # As `manage.py makemigrations` wrote it. It changes int to bigint, here and in foreign keys, and no default.
        migrations.AlterField(
            model_name="customer",
            name="id",
            field=shop.ids.SnowflakeField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
        ),
        migrations.AlterField(
            model_name="order",
            name="id",
            field=shop.ids.SnowflakeField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
        ),
        shop.ids.SnowflakeDefaults(),
    ]
