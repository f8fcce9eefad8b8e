// The page of kvcc eval --task: how many questions each scheme's cache lets the model answer.
const taskName = (task) => `${task.task} (${task.metric})`;

/// A task's own metric and its further ones: [name, score, standard error or undefined].
const taskScores = (task) => [
    [taskName(task), task.score, task.score_se],
    ...(task.further || []).map((further) => [`${task.task} (${further.metric})`, further.score])];

function tasksCard() {
  const scored = data.results.filter((row) => row.tasks);
  const names = scored.length ? scored[0].tasks.flatMap(taskScores).map(([name]) => name) : [];
  const scores = (row) => row.tasks.flatMap(taskScores);
  const text = ([, score, error]) =>
      known(score) ? number(score, 3) + (known(error) ? ` ± ${number(error, 2)}` : '') : 'not scored';
  return card(
      {
        id: 'tasks',
        title: 'Answers',
        file: 'tasks.csv',
        plain: true,
        note: 'Mean scores of greedy answers over each scheme’s cache, 1 is best; ± is a standard error.',
        rows: () => [
            ['scheme', 'codebook', ...names.flatMap((name) => [name, 'standard error'])],
            ...scored.map(
                (row) => [row.scheme, row.codebook, ...scores(row).flatMap(([, score, error]) => [score, error])])]
      },
      table(
          [
            ['Scheme', 'Sink + tail', ...names],
            ...scored.map(
                (row) => [rowName(row), known(row.sink) ? `${row.sink} + ${row.tail}` : '-', ...scores(row).map(text)])
          ],
          'Scores of the tasks by scheme'));
}

function tasksPage() {
  const tasks = full.tasks || [];
  page(
      {name: 'evaluation', links: [['tasks', 'Answers'], ['provenance', 'How']]}, null,
      el('div', {class: 'hero'}, el('h1', {tabindex: -1}, data.model_name || String(data.model).split('/').pop()),
         el('p', {class: 'sub'}, tasks.map((task) => `${task.task}, ${number(task.samples, 7)} samples`).join(' · '))),
      tiles(tasks.map((task) => [`${taskName(task)}, full precision`, number(task.score, 3)])), tasksCard(),
      card({id: 'provenance', title: 'How it was measured'}, facts([
             ['Model', String(data.model)], ['Seed', String(data.seed)],
             [
               'Tokens of a prompt see',
               data.mode === 'full' ? 'the quantised cache (full)' : 'each other exactly (prefill-exact)'
             ],
             ...tasks.map((task) => [task.task, `${count(task.samples)} samples, ${count(task.scored)} scored`])
           ])));
}
