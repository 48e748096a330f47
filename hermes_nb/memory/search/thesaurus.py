"""Everyday words that stand for each other when people tell and when they ask."""

from __future__ import annotations

from functools import lru_cache

from hermes_nb.memory.search.stems import stem

GROUPS = """
abroad overseas;achieve accomplish achievement accomplishment;advice suggestion tip recommend
recommendation suggest advise;afraid scared frightened fear worried;allergy allergic;angry mad upset
furious annoyed;animal pet;apartment flat condo;baby newborn pregnant;begin start launch;
believe think;big large huge;book novel;boss manager;boyfriend girlfriend partner;buy purchase
acquire shop;cancel postpone;car vehicle drive;career job work profession occupation;
celebrate celebration party;child daughter son;city town;class course lesson workshop;
clothes clothing outfit dress;color colour;company business firm employer;competition contest
tournament;concert gig show performance;contact call;cook bake recipe meal dish;country nation;
create make build craft;date anniversary;decide decision choose choice;destress relax unwind;
die death pass;diet eat food;difficult hard tough challenge;discuss talk speak conversation chat;
disease illness sick ill;dog puppy pup;cat kitten kitty;doctor physician;dream goal aspire hope;
drawing sketch painting picture art artwork;education school college university degree study;
employ hire;enjoy love like favorite favourite;exercise workout gym fitness;family relative parent;
famous popular;fast quick;father mother parent;film movie;finish complete end;fix repair;
flower plant garden;friend buddy pal;game play;gift present;glad happy pleased;
grandmother grandma granny;grandfather grandpa;group club community;happen occur;
health medical;hike trail trek;hobby pastime activity interest;hospital clinic;house home;
husband wife spouse partner;idea plan;identity gender;improve better;injury injured hurt;
inspire motivate motivation inspiration;instrument guitar piano violin;join attend participate;
journey trip travel vacation holiday;kid child;lake river beach sea ocean;language spanish french;
listen hear;live reside;lose lost;marry wedding marriage married engaged;meal dinner lunch
breakfast;meeting appointment;money pay cost price salary;mountain hill;move relocate;
music song band;nature outdoor camping;nervous anxious stress stressed;neighbor neighbour;
news newspaper;old age;opinion view;park trail;photo picture image;place location;
pottery clay ceramics;proud pride;race marathon run;read book;reason why;receive get;
relationship dating;remember recall remind;rent lease;research investigate look;restaurant cafe
diner;sad unhappy upset;save rescue;sibling brother sister;sport team soccer football basketball;
store shop;street road;student pupil;support help encourage;surprise shock;teach teacher coach;
tired exhausted;train practice;university college;vacation trip;visit trip;
volunteer charity nonprofit shelter;win award prize;write author;yard garden;
bug defect;error exception failure;crash fail;delete remove;function method;
folder directory;fast performance speed;slow latency
"""
"""Groups by meaning, wide enough for a question and its answer; a word may be in several."""


def alternatives(term: str) -> tuple[str, ...]:
    """Return the stems of words that may have been said instead of a term."""
    return _table().get(term, ())


@lru_cache(maxsize=1)
def _table() -> dict[str, tuple[str, ...]]:
    table: dict[str, dict[str, None]] = {}
    for group in GROUPS.split(";"):
        stems = dict.fromkeys(stem(word) for word in group.split())
        for term in stems:
            table.setdefault(term, {}).update(stems)
    return {term: tuple(other for other in found if other != term) for term, found in table.items()}
