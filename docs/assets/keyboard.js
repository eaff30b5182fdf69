// Whatever scrolls sideways can be reached with the keyboard; the theme does so for code alone, and only beside a mouse.
const wide = ".md-typeset pre > code, .md-typeset math[display=block], .md-typeset__scrollwrap"

function makeReachable() {
  for (const element of document.querySelectorAll(wide))
    if (element.scrollWidth > element.clientWidth && !element.hasAttribute("tabindex")) element.setAttribute("tabindex", "0")
}

new MutationObserver(makeReachable).observe(document.body, {
  attributeFilter: ["tabindex"],
  childList: true,
  subtree: true,
})
addEventListener("load", makeReachable)
addEventListener("resize", makeReachable)
