"""Words that say nothing about what a query is after, by language.

Used on queries alone: the index holds every word, so that a quoted phrase may contain them.
"""

from __future__ import annotations

from functools import lru_cache

from hermes_nb.memory.search.words import fold

LANGUAGES = {
    "en": """a about above after again against ago all also although am an and any anyone anything
        are arent around as ask at away be because been before being below between both but by can
        cannot cant could couldnt did didnt do does doesnt doing done dont down during each either
        else ever every everyone everything few for from further get gets getting give go goes
        going gone got had hadnt has hasnt have havent having he her here hers herself him himself
        his how however i id if ill im in into is isnt it its itself ive just kind let lets like
        long lot many may maybe me might mine more most much must mustnt my myself name need neither
        no nor not now of off ok okay on once one only onto or other our ours ourselves out over own
        per perhaps please quite rather really same say see shall she should shouldnt since so some
        someone something still such sure tell than that thats the their theirs them themselves then
        there theres these they theyre thing things this those though through thus till to together
        too toward towards type under until unto up upon us used using very via want was wasnt way
        we were werent what whats when where wheres whether which while who whole whom whos whose
        why will with within without wont would wouldnt yeah yes yet you your yours yourself
        youre youve""",
    "de": """aber alle allem allen aller alles als also am an ander andere auch auf aus bei bin bis
        bist da damit dann das dass dein dem den denn der des dich die dies diese diesem diesen
        dieser dieses dir doch dort du durch ein eine einem einen einer eines er es etwas euch euer
        fur gegen gibt hab habe haben hast hat hatte hatten hier hin hinter ich ihm ihn ihnen ihr
        ihre im in ist ja jede jeder jedes jetzt kann kein keine konnen machen man manche mein meine
        mich mir mit muss nach nicht nichts noch nun nur ob oder ohne sehr sein seine sich sie sind
        so soll uber um und uns unser unter viel vom von vor wann war waren warum was weil welche
        welcher welches wenn wer werde werden wie wieder will wir wird wo wurde wurden zu zum zur
        zwischen""",
    "fr": """a ai au aux avec avait avez avons bien ce cela ces cet cette ceux chez comme comment
        dans de des donc du elle elles en est et etait ete etes etre eux fait faire il ils je la le
        les leur leurs lui ma mais me meme mes moi mon ne nos notre nous on ont ou par pas peut plus
        pour pourquoi quand que quel quelle quelles quels qui quoi sa sans se sera ses si son sont
        sous sur ta te tes toi ton tous tout toute tres tu un une vos votre vous y""",
    "es": """a al algo ante como con contra cual cuales cuando cuanto de del desde donde dos el ella
        ellas ellos en entre era es esa ese eso esta estaba estan estar este esto estos fue ha hace
        hacia han hasta hay la las le les lo los mas me mi mis muy nada ni no nos nosotros o os otra
        otro para pero poco por porque que quien se ser si sin sobre son su sus tambien te tiene
        todo todos tu tus un una uno unos y ya yo""",
    "pt": """a ao aos as ate com como da das de dela dele do dos e ela elas ele eles em entre era
        essa esse esta estao este eu foi ha isso isto ja la lhe mais mas me mesmo meu minha muito na
        nao nas nem no nos nossa nosso num numa o onde os ou para pela pelo por porque qual quando
        que quem sao se sem ser seu so sua tambem te tem tinha tu tudo um uma voce voces""",
    "it": """a ad agli ai al alla alle allo anche avere aveva che chi ci come con contro cosa cui da
        dagli dai dal dalla degli dei del della delle dello di dopo dove e ed era essere fa fra gli
        ha hai hanno ho i il in io la le lei li lo loro lui ma mi mia mio ne negli nei nel nella noi
        non nostro o per perche piu poi qual quale quali quando quanto quella quello questa questo
        se sei si sia siamo sono sta su sua sul sulla suo te ti tra tu tua tuo tutti tutto un una
        uno vi voi""",
    "ru": """а без более бы был была были было быть в вам вас весь во вот все всего вы где да для до
        его ее если есть еще же за здесь и из или им их к как какая какие какой когда который кто ли
        либо меня мне может мы на над надо нам нас не него нее нет ни них но ну о об он она они оно
        от по под почему при с со так также такой там те тем то того тоже только том ты у уже чего
        чем что чтобы эта эти это я""",
}


@lru_cache(maxsize=1)
def _sets() -> dict[str, frozenset[str]]:
    return {name: frozenset(fold(text).split()) for name, text in LANGUAGES.items()}


def stop_words(words: list[str]) -> frozenset[str]:
    """Return the stop words of the language that most of these folded words speak for.

    English where nothing speaks for another one: "die" and "was" are words in more than one.
    """
    votes = {name: sum(word in known for word in words) for name, known in _sets().items()}
    best = max(votes, key=lambda name: (votes[name], name == "en"))
    return _sets()[best]
