"""The API server of this template project: microTVM's clients start it. It needs mlfc in the Python that runs it."""

from mlfc.micro.project_api.template_server import serve

if __name__ == "__main__":
    serve(__file__)
