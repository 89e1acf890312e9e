"""Where products are used: lines of business in two vocabularies, and sites by name."""

from __future__ import annotations

from rl_cluster.datasets.enterprise_kb.names import words

# (page phrasing, question phrasing); all are adverbial phrases.
SETTINGS: tuple[tuple[str, str], ...] = (
    ("in breweries", "for a brewery"),
    ("in hospitals", "for a hospital"),
    ("at airports", "for an airport"),
    ("in public libraries", "for a library"),
    ("on dairy farms", "for a dairy farm"),
    ("in hotels", "for a hotel"),
    ("in car factories", "for a car plant"),
    ("in bakeries", "for a bakery"),
    ("at seaports", "for a seaport"),
    ("in schools", "for a school"),
    ("in museums", "for a museum"),
    ("on railways", "for a railway"),
    ("in supermarkets", "for a supermarket"),
    ("in law firms", "for a law firm"),
    ("in paper mills", "for a paper mill"),
    ("on ferries", "for a ferry"),
    ("in vineyards", "for a vineyard"),
    ("in banks", "for a bank"),
    ("in nursing homes", "for a nursing home"),
    ("in stone quarries", "for a quarry"),
    ("in theatres", "for a theatre"),
    ("in greenhouses", "for a greenhouse"),
    ("in pharmacies", "for a pharmacy"),
    ("on construction sites", "for a construction site"),
    ("in fitness clubs", "for a fitness club"),
    ("in wind farms", "for a wind farm"),
    ("in textile mills", "for a textile mill"),
    ("in zoos", "for a zoo"),
    ("in slaughterhouses", "for a slaughterhouse"),
    ("in ski resorts", "for a ski resort"),
    ("in fire brigades", "for a fire brigade"),
    ("in shipyards", "for a shipyard"),
)

SITES: tuple[str, ...] = (
    words("""Aarhus Bergen Bilbao Bologna Bordeaux Braga Bremen Brno Cadiz Cork Debrecen Dundee Espoo Exeter Faro Galway Gdansk
    Ghent Graz Grenoble Haarlem Hobart Innsbruck Izmir Jena Kaunas Kiel Krakow Lausanne Leeds Leipzig Lille Linz Lugano
    Malmo Maribor Metz Modena Namur Nantes Odense Oulu Padua Parma Plovdiv Porto Poznan Quebec Rennes Riga Rostock Salerno
    Seville Split Tampere Tartu Toledo Trento Turku Ulm Utrecht Varna Verona Vigo Wroclaw York Zadar Zagreb Halifax
    Kobe Busan Pune Leon Cuenca Salta Cordoba Mendoza Durban Tunis Rabat Fremantle Dunedin Tromso Vaasa Liege""")
)
