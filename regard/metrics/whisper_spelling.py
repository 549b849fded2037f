"""American spellings of British words, as the English normalizer of Whisper writes them."""

import re
from functools import lru_cache

IZE = "(?:e[srd]?|ers|ing(?:ly|s)?|ations?|ational(?:ly)?|abl[ey]|edly)"
# British ending, American ending, the beginnings of words that have them, and what may follow
ENDINGS = (
    ("is", "iz", (
        "accessor acclimat aggrand agon amort anesthet anglic annual antagon apolog appet author bapt bastard "
        "bowdler brutal canal cannibal canon capital caramel carbon categor cauter central character circular "
        "civil collectiv colon commercial compartmental computer conceptual contextual criminal critic crystall "
        "custom decentral decriminal dehuman demilitar demobil democrat demon demoral denational deodor "
        "depersonal deput desensit destabil digit disorgan dramat econom editorial empath emphas energ epitom "
        "equal eulog evangel exorc extempor external factor familiar fantas femin fertil fictional final formal "
        "fossil fratern galvan general ghetto glamor global harmon homogen hospital human hybrid hypnot hypothes "
        "ideal idol immobil immortal immun individual industrial initial institutional intellectual internal "
        "international ion italic item jeopard legal legitim liberal lion liquid local magnet marginal material "
        "maxim mechan memor memorial mesmer metabol militar miniatur minim mobil modern moistur monopol moral "
        "motor national natural neutral normal optim organ ostrac overemphas oxid particular passiv pasteur "
        "patron pedestrian penal personal philosoph plagiar polar politic popular pressur priorit privat "
        "professional propagand proselyt public pulver radical random rational real recogn regular reorgan "
        "revital revolution rhapsod ritual romantic sanit satir scandal scrutin secular sensational sensit "
        "sentimental serial sermon signal social sodom solemn special stabil standard steril stigmat subsid "
        "summar symbol sympath synchron synthes systemat tantal tempor tender terror theor transistor traumat "
        "trivial tyrann unauthor uncivil underutil union unorgan unrecogn urban util vandal vapor verbal victim "
        "visual vocal vulcan vulgar western woman"
    ), IZE),
    ("ys", "yz", "anal breathal catal paral psychoanal", r"(?:e[srd]?|ers|ing)"),
    ("our", "or", (
        "arb ard arm behavi belab cand clam clang col demean discol disfav dishon enam endeav fav ferv flav harb "
        "hon hum lab misbehavi misdemean multicol neighb od parl ranc rig rum sav savi splend succ technicol "
        "tricol tum unfav unsav val vap vig watercol"
    ), r"\w*"),
    ("ll", "l", (
        "backpeda bedevi bejewe beve cance caro cavi channe chise counci counse crue cudge dia disembowe "
        "disheve drive due ename funne gambo grave grove grue impane imperi initia labe leve libe marsha marve "
        "mode pane parce peda penci quarre rave refue remode reve riva shove shrive signa snive snorke spira "
        "squirre stenci swive tasse towe trave tria tunne unequa unrave unriva untramme wease woo yode"
    ), r"(?:ed|ers?|ing(?:s|ly)?|ists?|ors?|ous\w*|ens?)"),
    ("re", "er", (
        "accout amphitheat calib cent centilit centimet epicent fib goit kilomet lacklust lit louv lust meag met "
        "micromet millilit millimet mit reconnoit sab saltpet scept sepulch somb spect theat"
    ), r"(?:s|fold\w*|piece\w*|glass|goer\w*|ments)?"),
    ("red", "ered", "cent louv reconnoit", ""),
    ("ring", "ering", "reconnoit", ""),
    ("amme", "am", "aerogr centigr gr kilogr milligr progr", "s?"),
    ("ogu", "og", "catal", "(?:ed|ing)"),
    ("isance", "izance", "recogn", ""),
    ("ogue", "og", "anal catal dial epil monol prol", "s?"),
    ("aught", "aft", "dr", r"\w*"),
    ("ence", "ense", "def lic off pret", r"\w*"),
    ("enc", "ens", "lic", "(?:ed|es|ing)"),
    ("ractis", "ractic", "p", r"\w*"),
    ("ey", "ay", "gr", r"(?:s|ed|ing|ish|ness)?"),
    ("lph", "lf", "su", r"\w*"),
    ("l", "ll", "appa disti enro enthra fulfi insta insti", r"(?:s|ments?|ful\w*|ations?)?"),
)  # fmt: skip
BEGINNINGS = (  # British and American; $: the whole word
    "aggrandis:aggrandiz archaeologically:archeologically archaeologist:archeologist archaeology$:archeology aeon:eon "
    "aeroplane:airplane aesthet:esthet aetiolog:etiolog ageing:aging almanack:almanac aluminium:aluminum anaem:anem "
    "anaesth:anesth archeological$:archaeological artefact:artifact axe$:ax bannister:banister battleax$:battleaxe "
    "baulk:balk behov:behoov bevv:bev biass:bias bingeing:binging buss:bus chequered:checkered cheque:check "
    "clarinettist:clarinetist connexion:connection inflexion:inflection cosy$:cozy cosie:cozie cosily:cozily "
    "cosiness:coziness crenelat:crenellat cypher:cipher disc$:disk discs$:disks videodisc:videodisk epaulette:epaulet "
    "omelette:omelet flautist:flutist gaol:jail gasses:gases gage:gauge gaging:gauging gipsies:gypsies "
    "glamor$:glamour glueing:gluing groyne:groin gryphon:griffin jewellery:jewelry jewell:jewel judgement$:judgment "
    "likeable:likable manoeuvred:maneuvered manoeuvre:maneuver manoeuvr:maneuver outmanoeuvred:outmaneuvered "
    "outmanoeuvre:outmaneuver outmanoeuvr:outmaneuver minibuss:minibus misspelt:misspelled mould:mold moult:molt "
    "remould:remold smould:smold moustach:mustach oesophag:esophag oestrogen:estrogen philtre:filter phoney:phony "
    "plough:plow pouffe:pouf pummelled:pummel pummelling:pummeled pyjama:pajama pzazz:pizzazz sceptic:skeptic "
    "sheikh:sheik snowploughs:snowplow snowplough:snowplow storeys:stories storey$:story syphon:siphon tonne$:ton "
    "tonnes:tons tranquillis:tranquiliz tranquilli:tranquili tranquilly:tranquility travelog$:travelogue "
    "travelogs:travelogues tyre:tire waggon:wagon worshipp:worship yoghourt:yogurt yoghurt:yogurt calliper:caliper "
    "chilli$:chili fillet:filet cancelation:cancellation bougainvillaea:bougainvillea caesarean:cesarean "
    "caesarian:cesarian chimaera:chimera encyclopaed:encycloped faec:fec gynaec:gynec haem:hem leukaem:leukem "
    "mediaev:mediev orthopaed:orthoped paed:ped palae:pale praes:pres primaev:primev toxaem:toxem diarrhoea:diarrhea "
    "edoema:edema foet:fet gonorrhoea:gonorrhea homoeop:homeop pharmacopoe:pharmacope callisthenic:calisthenic "
    "cruellest:cruelest woolly$:wooly woollies:woolies"
)


def _rules() -> list[tuple[re.Pattern[str], str]]:
    rules = []
    for british, _, american in (pair.partition(":") for pair in BEGINNINGS.split()):
        rest = "()" if british.endswith("$") else r"(\w*)"
        rules.append((re.compile(f"(){british.removesuffix('$')}{rest}"), american))
    for british, american, stems, rest in ENDINGS:
        rules.append((re.compile(f"({stems.replace(' ', '|')}){british}({rest})"), american))
    return rules


RULES = _rules()


@lru_cache(1 << 16)
def american(word: str) -> str:
    """The American spelling of a word in lower case."""
    for pattern, spelling in RULES:
        if match := pattern.fullmatch(word):
            word = f"{match[1]}{spelling}{match[2]}"
    return word
