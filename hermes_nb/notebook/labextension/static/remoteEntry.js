/* The front end's half of hermes_nb: the agent in the kernel edits the notebook that is open here.
 *
 * A module-federation container written by hand: no node, no bundler. JupyterLab hands it the share
 * scope, from which it takes the application's own copies of the libraries. It loads this file as a
 * classic script. The others are modules beside it, at addresses that end as this one's does: a
 * browser keeps them for a year, so new ones need new addresses. Therefore none of them imports
 * another: they are handed what they need.
 */
(() => {
  const HERE = document.currentScript.src;
  // Each has `start(given)`, whose result bridge.js describes; this is all that names a new one.
  const PARTS = ['cells', 'turns', 'question', 'side'];
  let scope;

  const shared = async name => {
    const versions = Object.values(scope[name] ?? {});
    if (!versions.length) throw new Error(`hermes-nb: ${name} is not shared by this application`);
    return (await (versions.find(v => v.loaded) ?? versions[0]).get())();
  };

  const part = name => import(new URL(`./${name}.js${new URL(HERE).search}`, HERE).href);

  const activate = async (app, tracker) => {
    const [dom, bridge, ...parts] = await Promise.all(['dom', 'bridge', ...PARTS].map(part));
    const given = { app, cells: parts[0], dom, shared, tracker };
    bridge.connect(given, parts.map(each => each.start(given)));
  };

  (window._JUPYTERLAB ??= {})['hermes-nb'] = {
    init: given => {
      scope = given;
    },
    get: async () => {
      const { INotebookTracker } = await shared('@jupyterlab/notebook');
      const plugin = {
        id: 'hermes-nb:plugin',
        autoStart: true,
        requires: [INotebookTracker],
        activate
      };
      return () => ({ __esModule: true, default: plugin });
    }
  };
})();
