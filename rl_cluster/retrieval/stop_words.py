"""The most common words of languages for which no library here has a list: particles, pronouns, prepositions, auxiliaries.

Chosen to be short: a word that could carry a question's meaning is not among them. Vietnamese writes syllables apart, so only
those are listed that hardly ever are a part of a longer word.
"""

from __future__ import annotations

_ARABIC = """
في من على إلى الى عن أن ان إن أو او هو هي هم هذا هذه ذلك تلك التي الذي الذين ما لا لم لن قد كان كانت يكون تكون
كل بعد قبل بين مع ثم و كما عند أي اي حتى إذا اذا به بها له لها لهم فيه فيها منه منها عليه عليها وهو وهي ولا وقد
لقد وفي ومن وعلى والتي والذي
"""
_HINDI = """
का के की में है हैं को से पर और यह वह ये वे कि था थे थी थीं एक ने भी हो गया गई गए कर करने लिए तक इस उस इन उन जो
तो ही या रहा रही रहे होता होती होते हुआ हुई हुए किया किए दिया साथ द्वारा अपने अपनी अपना इसके उसके इसकी उसकी
नहीं
"""
_VIETNAMESE = """
và của là các những được trong với này đó đã để khi từ ở như mà thì bởi vì rằng
"""
ARABIC = frozenset(_ARABIC.split())
HINDI = frozenset(_HINDI.split())
VIETNAMESE = frozenset(_VIETNAMESE.split())
