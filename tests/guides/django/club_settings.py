"""The same with the app `club`, which `manage.py startapp` makes and whose models.py is beside this file."""

from contrib_settings import *

INSTALLED_APPS.append("club")
AUTH_USER_MODEL = "club.Member"
