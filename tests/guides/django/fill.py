"""Adds a row to every table of the app club. The first argument makes names unique."""

import os
import sys

import django

sys.path.insert(0, os.getcwd())
django.setup()

from django.contrib.auth.models import Group, Permission

from club.models import Match, Member, Membership, Note, Stadium, Tag, Team

name = sys.argv[1]
member = Member.objects.create(username=name)
member.groups.add(Group.objects.get_or_create(name="all")[0])
member.user_permissions.add(Permission.objects.first())
team, rival = Team.objects.bulk_create([Team(name=name), Team(name=name)])
team.rivals.add(rival)
Membership.objects.create(member=member, team=team)
match = Match.objects.create(venue=Stadium.objects.create(name=name, seats=1))
match.tags.add(Tag.objects.create(slug=name))
match.referees.add(member)
Note.objects.create(about=team)
