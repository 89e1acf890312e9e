"use strict";
// Texts of models and documents are data: they reach the page through textContent alone.
(() => {
  const questions = JSON.parse(document.getElementById("data").textContent).questions;
  const list = document.getElementById("list");
  if (!list) return;
  const field = (id) => document.getElementById(id);
  const PAGE = 25;
  let shown = PAGE;

  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const options = (id, values) => {
    for (const value of [...new Set(values)].sort()) {
      const option = element("option", "", value);
      option.value = value;
      field(id).append(option);
    }
  };
  const episodes = (question) => Object.values(question.episodes);
  options("dataset", questions.map((question) => question.dataset));
  options("outcome", questions.flatMap((question) => episodes(question).map((episode) => episode.outcome)));
  const texts = questions.map((question) =>
    [question.question, question.task_id, ...episodes(question).flatMap((episode) => episode.turns.flatMap((turn) => [turn.text, turn.observation]))].join("\n").toLowerCase());

  const ORDERS = {
    changed: (a, b) => Math.abs(b.change || 0) - Math.abs(a.change || 0),
    improved: (a, b) => (b.change || 0) - (a.change || 0),
    harmed: (a, b) => (a.change || 0) - (b.change || 0),
  };

  const turnView = (turn, place) => {
    const box = element("div", "turn");
    box.append(element("div", "label", `turn ${place + 1}, ${turn.tokens} tokens`));
    if (turn.text) box.append(element("pre", "", turn.text));
    for (const call of turn.calls) {
      if (!turn.text) box.append(element("pre", "", `${call.name} ${call.arguments}`));
      if (call.error) box.append(element("pre", "wrong", call.error));
    }
    if (turn.observation) box.append(element("pre", "observation", turn.observation));
    return box;
  };
  const runView = (name, episode, gold) => {
    const box = element("div", "run");
    const head = element("h3", "", `${name}: nDCG@10 ${episode.ndcg.toFixed(3)} `);
    head.append(element("span", episode.outcome === "finished" ? "" : "wrong", episode.outcome));
    box.append(head);
    if (episode.error) box.append(element("pre", "wrong", episode.error));
    episode.turns.forEach((turn, place) => box.append(turnView(turn, place)));
    const ranking = element("div", "ranking", "handed in: ");
    episode.ranking.forEach((id) => ranking.append(element("span", gold.has(id) ? "hit" : "", id), " "));
    if (!episode.ranking.length) ranking.append("nothing");
    box.append(ranking);
    return box;
  };
  const questionView = (question) => {
    const box = element("details", "question");
    const summary = element("summary");
    const change = question.change;
    const mark = change > 0 ? "up" : change < 0 ? "down" : "";
    summary.append(element("span", `change ${mark}`, change === null ? "" : (change > 0 ? "+" : "") + change.toFixed(3)));
    summary.append(element("span", "set", question.dataset), question.question);
    box.append(summary);
    box.addEventListener("toggle", () => {
      if (!box.open || box.children.length > 1) return;
      box.append(element("div", "gold", `relevant (gain): ${question.gold.map((id, place) => `${id} (${question.gains[place]})`).join(" ")}`));
      const runs = element("div", "runs");
      const gold = new Set(question.gold);
      for (const [name, episode] of Object.entries(question.episodes)) runs.append(runView(name, episode, gold));
      box.append(runs);
    });
    return box;
  };

  const draw = () => {
    const dataset = field("dataset").value;
    const outcome = field("outcome").value;
    const text = field("text").value.trim().toLowerCase();
    const found = questions.filter((question, place) =>
      (!dataset || question.dataset === dataset) &&
      (!outcome || episodes(question).some((episode) => episode.outcome === outcome)) &&
      (!text || texts[place].includes(text)));
    found.sort(ORDERS[field("order").value]);
    list.replaceChildren(...found.slice(0, shown).map(questionView));
    field("count").textContent = `${Math.min(shown, found.length)} of ${found.length} questions that fit, ${questions.length} in this report`;
    field("more").hidden = found.length <= shown;
  };
  for (const id of ["order", "dataset", "outcome", "text"]) {
    field(id).addEventListener("input", () => { shown = PAGE; draw(); });
  }
  field("more").addEventListener("click", () => { shown += PAGE; draw(); });
  draw();
})();
