// What the theme leaves to do: names of search and versions, regions that scroll by keyboard, names that break between words.
function nameVersions() {
  const shown = document.querySelector(".md-version__current");
  const label = `Version ${shown?.textContent.trim()}`;
  if (shown && shown.getAttribute("aria-label") !== label) shown.setAttribute("aria-label", label);
}
new MutationObserver(nameVersions).observe(document.body, {childList: true, subtree: true}); // the theme adds them late
document$.subscribe(() => {
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .md-sidebar__scrollwrap")) {
    if (region.scrollWidth > region.clientWidth || region.scrollHeight > region.clientHeight) region.tabIndex = 0;
  }
  for (const name of document.querySelectorAll("td code, th code")) {
    for (const node of [...name.childNodes].filter((each) => each.nodeType === Node.TEXT_NODE)) {
      const words = node.data.split(/(?<=[_.,/])/);
      node.replaceWith(...words.flatMap((word, n) => (n ? [document.createElement("wbr"), word] : [word])));
    }
  }
});
