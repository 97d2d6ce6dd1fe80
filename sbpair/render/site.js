// The search: every word that is typed has to be there; a word in a title counts more than one in the text.
const query = document.getElementById("query");
const found = document.getElementById("found");

function score(entry, words) {
  const title = entry.title.toLowerCase();
  const text = entry.text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    const inTitle = title.includes(word);
    const times = text.split(word).length - 1;
    if (!inTitle && !times) return 0;
    sum += (inTitle ? 20 : 0) + Math.min(times, 5);
  }
  return sum;
}

function excerpt(text, word) {
  const at = Math.max(text.toLowerCase().indexOf(word) - 40, 0);
  return (at ? "… " : "") + text.slice(at, at + 140) + (text.length > at + 140 ? " …" : "");
}

function show() {
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  const best = words.length
    ? entries.map((entry) => [score(entry, words), entry]).filter(([points]) => points).sort((a, b) => b[0] - a[0]).slice(0, 12)
    : [];
  found.replaceChildren(
    ...best.map(([, entry]) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = entry.page;
      link.textContent = entry.title;
      const small = document.createElement("small");
      small.textContent = excerpt(entry.text, words[0]);
      item.append(link, small);
      return item;
    }),
  );
  if (words.length && !best.length) {
    const none = document.createElement("li");
    none.textContent = "Nothing found.";
    found.append(none);
  }
  found.hidden = !words.length;
}

query.addEventListener("input", show);
query.addEventListener("keydown", (event) => {
  const first = found.querySelector("a");
  if (event.key === "Escape") { query.value = ""; show(); }
  if (event.key === "Enter" && first) location.href = first.href;
  if (event.key === "ArrowDown" && first) { event.preventDefault(); first.focus(); }
});
