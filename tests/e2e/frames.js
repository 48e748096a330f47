() => {
  window.longest = 0;
  let last = performance.now();
  const frame = now => {
    window.longest = Math.max(window.longest, now - last);
    last = now;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}
