// Draws the report that lies in #report. Two-dimensional charts are SVG, which scales to the paper's width. A table beside
// each chart has its figures.
'use strict';

const report = JSON.parse(document.getElementById('report').textContent);
const main = document.getElementById('main');
const errors = [];
const charts = [];
const colours = { pinned: '#6e7781', mapped: '#1a7f37', staged: '#0969da', plain: '#bc4c00', direct: '#8250df' };

// narrow is a telephone's screen, or half a window: a legend that breaks into lines would cover its chart there.
const narrow = window.innerWidth < 600;

function legend(left) {
  return narrow ? { top: 5, left: 10, right: 10, type: 'scroll' } : { top: 5, left };
}

window.addEventListener('error', e => errors.push(e.message));

// element makes one; text is never read as HTML.
function element(parent, tag, text, attributes) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
  parent.appendChild(e);
  return e;
}

function digits(x) {
  if (x >= 100) return x.toFixed(0);
  if (x >= 10) return x.toFixed(1);
  return x >= 0.1 ? x.toFixed(2) : x.toPrecision(2);
}

function range(r, by = 1) {
  const low = digits(r.low * by), high = digits(r.high * by);
  return low === high ? low : low + ' to ' + high;
}

function time(r) {
  for (const [above, unit, name] of [[172800, 86400, 'd'], [7200, 3600, 'h'], [120, 60, 'min'], [1, 1, 's'], [0, 1e-3, 'ms']]) {
    if (r.mid >= above) return range(r, 1 / unit) + ' ' + name;
  }
}

function size(bytes) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (bytes < 1024) return bytes + ' ' + unit;
    bytes /= 1024;
  }
  return bytes + ' TiB';
}

function chart(parent, option) {
  const c = charting.init(element(parent, 'div', undefined, { class: 'chart' }));
  c.setOption(Object.assign({ animation: false, textStyle: { fontFamily: 'system-ui, sans-serif' } }, option));
  charts.push(c);
  return c;
}

function table(parent, head, rows) {
  const t = element(element(parent, 'div', undefined, { class: 'wide' }), 'table');
  const top = element(element(t, 'thead'), 'tr');
  head.forEach(h => element(top, 'th', h));
  const body = element(t, 'tbody');
  for (const row of rows) {
    const tr = element(body, 'tr');
    for (const cell of row) {
      if (cell && cell.shade !== undefined) element(tr, 'td', cell.text, { style: 'background: rgba(26, 127, 55, ' + (0.75 * cell.shade).toFixed(2) + ')' });
      else if (cell && cell.note !== undefined) element(tr, 'td', cell.note, { class: 'text' });
      else element(tr, 'td', cell);
    }
  }
  return t;
}

function contention(section, node) {
  element(section, 'h3', 'All GPUs together, by how many read at once');
  const shown = node.contention.filter(s => s.points);
  const label = s => s.path + ' from ' + s.from;
  chart(section, {
    tooltip: { trigger: 'axis', valueFormatter: v => digits(v) + ' GB/s' },
    legend: legend(90), grid: { left: 60, right: 30, top: 75, bottom: 45 },
    xAxis: { type: 'value', name: 'GPUs', nameLocation: 'middle', nameGap: 26, min: 1, max: Math.max(2, node.gpus), minInterval: 1 },
    yAxis: { type: 'value', name: 'GB/s' },
    series: shown.flatMap(s => [{
      name: label(s), type: 'line', symbolSize: 6, itemStyle: { color: colours[s.path] },
      lineStyle: { type: s.from === 'storage' ? 'dashed' : 'solid' },
      data: s.points.map(p => [p.gpus, p.aggregate_gb_per_s.mid]),
    }, {
      name: label(s), type: 'custom', itemStyle: { color: colours[s.path] }, tooltip: { show: false }, silent: true,
      encode: { x: 0, y: [1, 2] },
      data: s.points.map(p => [p.gpus, p.aggregate_gb_per_s.low, p.aggregate_gb_per_s.high]),
      renderItem: (_, api) => {
        const a = api.coord([api.value(0), api.value(1)]), b = api.coord([api.value(0), api.value(2)]);
        return { type: 'line', shape: { x1: a[0], y1: a[1], x2: b[0], y2: b[1] }, style: { stroke: api.visual('color'), lineWidth: 5, opacity: 0.25 } };
      },
    }]),
  });
  table(section, ['path', 'from', 'one GPU, GB/s', 'all, GB/s', 'best number', 'binding with all'], node.contention.map(s => {
    if (!s.points) return [s.path, s.from, '', '', '', { note: s.without }];
    const first = s.points[0], last = s.points[s.points.length - 1];
    return [s.path, s.from, range(first.aggregate_gb_per_s), range(last.aggregate_gb_per_s), s.best_gpus, { note: (last.binds || []).join(', ') }];
  }));
}

function stages(section, node) {
  element(section, 'h3', 'The rate of each stage, and its use');
  const keys = [...new Set(node.stages.map(s => [s.path, s.from, s.gpus].join('|')))];
  if (keys.length === 0) return;
  const select = element(section, 'select');
  for (const k of keys) {
    const [path, from, gpus] = k.split('|');
    element(select, 'option', path + ' from ' + from + ', ' + gpus + (gpus === '1' ? ' GPU' : ' GPUs'), { value: k });
  }
  const preferred = keys.find(k => k.startsWith('staged|page cache|') && !k.endsWith('|1'));
  if (preferred) select.value = preferred;
  const title = element(section, 'p', '', { class: 'soft' });
  const c = chart(section, {});
  const draw = () => {
    const rows = node.stages.filter(s => [s.path, s.from, s.gpus].join('|') === select.value);
    title.textContent = select.selectedOptions[0].textContent + '. Dark: the rate that it carries. Light: the rate that it could carry. Red: it binds.';
    c.setOption({
      animation: false,
      tooltip: { trigger: 'axis', axisPointer: { type: 'shadow' }, valueFormatter: v => digits(v) + ' GB/s' },
      grid: { left: 60, right: 30, top: 30, bottom: 80 },
      xAxis: { type: 'category', data: rows.map(s => s.stage), axisLabel: { rotate: 25, interval: 0 } },
      yAxis: { type: 'value', name: 'GB/s' },
      series: [
        { name: 'could carry', type: 'bar', barGap: '-100%', itemStyle: { color: '#d0d7de' }, data: rows.map(s => s.rate_gb_per_s.mid) },
        { name: 'carries', type: 'bar', data: rows.map(s => ({ value: s.rate_gb_per_s.mid * s.use, itemStyle: { color: s.binds ? '#cf222e' : '#0969da' } })) },
      ],
    }, true);
  };
  select.addEventListener('change', draw);
  draw();
}

function sizes(section, node) {
  if (node.io_size.length === 0) return;
  element(section, 'h3', 'One GPU, by the size of an I/O');
  element(section, 'p', 'Solid: 8 under way. Dashed: a fence after each, so that nothing overlaps.', { class: 'soft' });
  const paths = [...new Set(node.io_size.map(s => s.path))];
  const line = (path, field, type) => ({
    name: path, type: 'line', symbol: 'none', itemStyle: { color: colours[path] }, lineStyle: { type },
    data: node.io_size.filter(s => s.path === path).map(s => [size(s.bytes), s[field]]),
  });
  chart(section, {
    tooltip: { trigger: 'axis', valueFormatter: v => digits(v) + ' GB/s' },
    legend: legend(), grid: { left: 60, right: 30, top: 50, bottom: 45 },
    xAxis: { type: 'category', data: [...new Set(node.io_size.map(s => size(s.bytes)))] },
    yAxis: { type: 'log', name: 'GB/s' },
    series: paths.flatMap(p => [line(p, 'depth_8_gb_per_s', 'solid'), line(p, 'fence_each_io_gb_per_s', 'dashed')]),
  });
}

function remarks(p, j) {
  const list = [];
  if (p.stall_s) list.push(p.stall_s.high ? 'GPUs wait ' + time(p.stall_s) : 'the GPUs never wait');
  if (p.fits_the_notice) list.push('fits the notice: ' + p.fits_the_notice);
  if (p.restore_s) list.push('restore ' + time(p.restore_s));
  if (p.overhead_share) list.push(range(p.overhead_share, 100) + '% of all time');
  if (p.best_interval_s) list.push('best interval ' + time(p.best_interval_s));
  if ((p.binds || []).length) list.push('binds: ' + p.binds.join(', '));
  return list.join('; ');
}

function jobs(section, node) {
  if (!node.jobs || node.jobs.length === 0) return;
  element(section, 'h3', 'Jobs');
  const paths = ['plain', 'staged', 'mapped', 'direct'];
  chart(section, {
    tooltip: { trigger: 'axis', axisPointer: { type: 'shadow' }, valueFormatter: v => v === undefined || v === null ? '-' : time({ low: v, mid: v, high: v }) },
    legend: legend(), grid: { left: narrow ? 135 : 260, right: narrow ? 20 : 40, top: 50, bottom: 45 },
    yAxis: { type: 'category', inverse: true, data: node.jobs.map(j => j.job.name), axisLabel: { width: narrow ? 120 : 240, overflow: 'break', lineHeight: 15 } },
    xAxis: { type: 'log', name: 'seconds', nameLocation: 'middle', nameGap: 26, axisLabel: { hideOverlap: true } },
    series: paths.map(path => ({
      name: path, type: 'bar', itemStyle: { color: colours[path] },
      data: node.jobs.map(j => { const p = j.paths.find(p => p.path === path); return p && !p.without ? p.time_s.mid : null; }),
    })),
  });
  const rows = [];
  for (const j of node.jobs) {
    for (const [i, p] of j.paths.entries()) {
      const name = { note: i === 0 ? j.job.name : '' };
      if (p.without) rows.push([name, p.path, '', '', '', '', { note: p.without }]);
      else rows.push([name, p.path, range(p.rate_gb_per_s), time(p.time_s), node.price_per_hour ? `${range(p.cost)} ${node.currency}` : '-', range(p.times_faster), { note: remarks(p, j) }]);
    }
  }
  table(section, ['job', 'path', 'GB/s', 'time', 'cost', 'times faster than plain', 'remarks'], rows);
}

function registration() {
  const section = element(main, 'section');
  element(section, 'h2', 'Is registering worth it?');
  element(section, 'p', 'R is the part of the time that moves bytes: T_transfer / (T_reg + T_transfer), over the size of a buffer and the I/Os that go through one registration.');
  const select = element(section, 'select');
  report.registration.forEach((s, i) => element(select, 'option', s.registration.name + ', ' + digits(s.link_gb_per_s) + ' GB/s', { value: i }));
  const source = element(section, 'p', '', { class: 'soft' });
  const box = element(section, 'div', undefined, { class: 'chart tall screen' });
  const figures = element(section, 'div');
  const graph = new charting.Graph3d(box, undefined, {
    style: 'surface', width: '48rem', height: '100%', backgroundColor: { fill: 'none', stroke: 'none', strokeWidth: 0 },
    colormap: ['#cf222e', '#d4a72c', '#1a7f37'], showShadow: false, keepAspectRatio: false, verticalRatio: 0.6,
    xLabel: 'buffer', yLabel: 'I/Os', zLabel: 'R', xStep: 2, yStep: 2, zStep: 0.2, zMin: 0, zMax: 1,
    cameraPosition: { horizontal: -0.7, vertical: 0.4, distance: 2.1 }, axisFontSize: 26, rotateAxisLabels: false, yCenter: '44%',
  });
  charts.push(graph);
  const draw = () => {
    const s = report.registration[select.value];
    source.textContent = select.selectedOptions[0].textContent + ': ' + s.registration.source + '.';
    graph.setOptions({
      xValueLabel: x => size(s.sizes[x]), yValueLabel: y => String(s.ios[y]),
      tooltip: p => size(s.sizes[p.x]) + ', ' + s.ios[p.y] + ' I/Os: R = ' + p.z.toFixed(2),
    });
    graph.setData(s.sizes.flatMap((_, x) => s.ios.map((_, y) => ({ x, y, z: s.r[x][y] }))));
    figures.replaceChildren();
    table(figures, ['buffer', ...s.ios.map(n => n + (n === 1 ? ' I/O' : ' I/Os')), 'I/Os until R = ' + s.break_even_r],
      s.sizes.map((bytes, i) => [size(bytes), ...s.r[i].map(r => ({ text: r.toFixed(2), shade: r })), s.break_even_ios[i]]));
  };
  select.addEventListener('change', draw);
  draw();
}

function compared() {
  if (!report.compared) return;
  const section = element(main, 'section');
  element(section, 'h2', 'The nodes beside each other');
  element(section, 'p', 'Each job by the fastest path that a node has, and by plain.', { class: 'soft' });
  table(section, ['job', 'node', 'path', 'time', 'cost', 'by plain'], report.compared.map(c =>
    [{ note: c.job }, { note: c.node }, c.path, time(c.time_s), c.cost.mid ? `${range(c.cost)} ${c.currency}` : '-', time(c.plain_time_s)]));
}

function cpus() {
  const c = report.calibration;
  const section = element(main, 'section');
  element(section, 'h2', 'Calibration');
  table(section, ['figure', 'value'], [
    ['pinned copy into one GPU, GB/s', range(c.wall)],
    ['mapped, part of the link', digits(c.mapped_of_link)],
    ['staged, part of the link', digits(c.staged_of_link)],
    ['plain, one thread, GB/s', range(c.plain)],
    ['registering page cache, GB/s in all', range(c.register)],
    ['one thread of staged alone, GB/s', digits(c.cpus.gb_per_s_per_thread)],
    ['cost of each pair of threads', c.cpus.coherence.toPrecision(2)],
    ['staged runs, GPUs x threads: GB/s', c.cpus.points.map(p => p.gpus + 'x' + p.threads + ': ' + digits(p.gb_per_s)).join(', ')],
  ]);
}

try {
  compared();
  for (const node of report.nodes) {
    const section = element(main, 'section');
    element(section, 'h2', node.name);
    element(section, 'p', node.gpus + (node.gpus === 1 ? ' GPU. ' : ' GPUs. ') + (node.source ? 'From: ' + node.source + '.' : ''), { class: 'soft' });
    (node.notes || []).forEach(n => element(section, 'p', n, { class: 'soft' }));
    contention(section, node);
    jobs(section, node);
    stages(section, node);
    sizes(section, node);
  }
  registration();
  cpus();
  window.addEventListener('resize', () => charts.forEach(c => c.resize ? c.resize() : c.redraw()));
} catch (e) {
  errors.push(String(e && e.stack || e));
}
if (errors.length) element(main, 'p', errors.join('\n'), { id: 'errors' });
document.body.dataset.charts = charts.length;
document.body.dataset.state = errors.length ? 'failed' : 'ready';
