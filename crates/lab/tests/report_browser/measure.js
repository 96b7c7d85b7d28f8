// What does not fit, as a list of sentences; empty for a page that is right.
(() => {
  const wrong = [];
  const say = (what, element) => {
    const name = element.getAttribute('class') || '';
    wrong.push(`${what}: <${element.tagName} ${name}> ${element.textContent.trim().slice(0, 60)}`);
  };
  const root = document.documentElement;
  const width = root.clientWidth;
  if (root.scrollWidth > width) wrong.push(`the document is ${root.scrollWidth} wide in ${width}`);

  // Text for screen readers only, and text that is cut with an ellipsis on purpose.
  const skipped = '.hidden, .skip, .names bdi';
  const seen = (element) =>
    !element.closest(skipped) && element.checkVisibility() && element.getClientRects().length > 0;
  const inside = (inner, outer, slack) =>
    inner.left >= outer.left - slack && inner.right <= outer.right + slack &&
    inner.top >= outer.top - slack && inner.bottom <= outer.bottom + slack;

  for (const element of document.body.querySelectorAll('*')) {
    if (!seen(element)) continue;
    const box = element.getBoundingClientRect();
    if (box.width > 0 && (box.right > width + 1 || box.left < -1)) say('outside the window', element);
    const html = element instanceof HTMLElement;
    if (html && getComputedStyle(element).display !== 'inline' && element.scrollWidth > element.clientWidth + 1)
      say(`${element.scrollWidth} wide in ${element.clientWidth}`, element);
  }

  // The boxes of the lines of text in an element; a name that is cut with an ellipsis has its own.
  const lines = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return [...range.getClientRects()].filter((box) => box.width > 0);
  };
  const over = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;

  let texts = 0;
  for (const frame of document.querySelectorAll('figure, .panel')) {
    const bounds = frame.getBoundingClientRect();
    const all = [...frame.querySelectorAll('svg:not(.sign) text, .label, .across, .figures, .names li, .metric, .key li, .off')]
      .filter((element) => seen(element) && element.textContent.trim());
    const boxes = all.map((element) => [element, element.matches('.names li') ? [element.getBoundingClientRect()] : lines(element)]);
    texts += boxes.length;
    for (const [element, rects] of boxes)
      if (rects.some((box) => !inside(box, bounds, 1))) say('text outside its frame', element);
    for (let i = 0; i < boxes.length; i++)
      for (let j = i + 1; j < boxes.length; j++)
        if (boxes[i][1].some((a) => boxes[j][1].some((b) => over(a, b))))
          say(`under "${boxes[j][0].textContent.trim().slice(0, 30)}"`, boxes[i][0]);
    for (const segment of frame.querySelectorAll('.track .share, .track .rest:not(.absent)')) {
      const bar = segment.querySelector('rect').getBoundingClientRect();
      for (const text of [...segment.querySelectorAll('text')].filter(seen))
        if (lines(text).some((box) => box.left < bar.left - 1 || box.right > bar.right + 1))
          say('text outside its segment', text);
      if (bar.width > 40 && segment.matches('.share') && ![...segment.querySelectorAll('text')].some(seen))
        say('a segment without its letter', segment);
      if (!inside(bar, bounds, 1)) say('segment outside its frame', segment);
    }
    for (const mark of frame.querySelectorAll('.m, .h, .threshold, .bar'))
      if (!inside(mark.getBoundingClientRect(), bounds, 1)) say('mark outside its frame', mark.closest('g, li') || mark);
  }
  if (document.querySelector('.plot') && texts < 10) wrong.push(`only ${texts} texts in figures`);
  for (const labels of document.querySelectorAll('.labels')) {
    const shown = [...labels.querySelectorAll('text')].filter(seen);
    if (labels.childElementCount > 1 && labels.checkVisibility() && shown.length < 2)
      wrong.push(`an axis with ${shown.length} labels`);
  }
  return wrong.slice(0, 60);
})()
